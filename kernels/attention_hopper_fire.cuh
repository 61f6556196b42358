// FIRE's bias on the accumulators of the Hopper attention kernel.
#pragma once

#include <cmath>

#include "kernels/attention_bias.cuh"
#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {

// Distances that 16 queries and the 128 keys of a tile are at, and some for alignment.
constexpr int kFireBefore = 16, kFireStrip = kFireBefore + 128;
using FireStrip = float[2][kFireStrip];

// Of a lane's two queries (fragment C of mma.cuh). f falls from key to key, so that a query's keys
// go through the segments of the network from the last to the first: which one is known from the
// key before, and looked up anew only where it ends.
class FireRows {
 public:
  // Queries at position and position + 8; the lane's keys are not before `first_key`.
  __device__ __forceinline__ void Begin(const HeadBias& bias, int position, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = position + half * 8;
      // Of logarithms to the base 2.
      inverse_length_[half] = bias.FireInverseLength(row) * kLn2;
      length_[half] = 1.0f / inverse_length_[half];
      const float f = Distance(bias, static_cast<float>(first_key - row)) * inverse_length_[half];
      Enter(bias, half, bias.FireSegment(f));
    }
  }

  // A warp writes the logarithms of distances [begin, begin + kFireStrip) for Add, twice as
  // AddPairedStrip wants them.
  __device__ __forceinline__ static void WriteStrip(const HeadBias& bias, int begin,
                                                    FireStrip& strip) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncwarp();  // the strip before is read
#pragma unroll
    for (int i = lane; i < kFireStrip; i += 32) {
      const float f = Distance(bias, static_cast<float>(begin + i));
      strip[0][i] = f;
      if (i > 0) strip[1][i - 1] = f;
    }
    __syncwarp();
  }

  // scores = scores * scale + bias; the strip begins kFireBefore before the distance of the first
  // of 16 queries and the first key. Mostly, no query of the warp leaves its segment within
  // kTogether groups of keys.
  template <int kGroups>
  __device__ __forceinline__ void Add(const HeadBias& bias, float (&scores)[kGroups][4],
                                      const FireStrip& strip, float scale) {
    constexpr int kTogether = 4;
    const float2* pairs = PairsOfStrip(strip[0], strip[1], kFireBefore);
    float2 here[1 + kTogether];  // eight keys and eight queries further lie on the same diagonal
    here[0] = pairs[-4];
#pragma unroll
    for (int begin = 0; begin < kGroups; begin += kTogether) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) here[1 + j] = pairs[(begin + j) * 4];
      float value[kTogether][4];
      // f of score e of group j, without the query's length.
      const auto f = [&](int j, int e) {
        const float2& pair = here[1 + j - e / 2];
        return e % 2 == 0 ? pair.x : pair.y;
      };
      const auto evaluate = [&](const float(&end)[2]) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (f(j, e) <= end[e / 2]) value[j][e] = fmaf(f(j, e), slope_[e / 2], offset_[e / 2]);
          }
        }
      };
      evaluate({INFINITY, INFINITY});
      const float least[2] = {f(kTogether - 1, 1), f(kTogether - 1, 3)};
      while (__any_sync(0xffffffffu, least[0] <= floor_[0] || least[1] <= floor_[1])) {
        float end[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (least[half] > floor_[half]) continue;
          end[half] = floor_[half];
          Enter(bias, half, segment_[half] - 1);
        }
        evaluate(end);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[begin + j][e] = fmaf(scores[begin + j][e], scale, value[j][e]);
        }
      }
      here[0] = here[kTogether];
    }
  }

 private:
  static constexpr float kLn2 = 0.6931471805599453f;

  // As HeadBias::FireDistance, to the base 2 and by the fast logarithm.
  __device__ __forceinline__ static float Distance(const HeadBias& bias, float delta) {
    float f;  // lg2.approx's argument is at least 1: no care for the smallest numbers
    asm("lg2.approx.ftz.f32 %0, %1;"
        : "=f"(f)
        : "f"(fmaf(fabsf(bias.fire_c()), fabsf(delta), 1.0f)));
    return delta < 0.0f ? f : -f;
  }
  __device__ __forceinline__ void Enter(const HeadBias& bias, int half, int segment) {
    segment_[half] = segment;
    floor_[half] = bias.FireFloor(segment) * length_[half];
    const float2 line = bias.FireLine(segment);
    slope_[half] = line.x * inverse_length_[half];
    offset_[half] = line.y;
  }

  // All of f without the query's length.
  float length_[2], inverse_length_[2];
  float floor_[2], slope_[2], offset_[2];  // of the segments where the queries are
  int segment_[2];
};

}  // namespace quintet::cuda
