// FIRE's bias on the accumulators of the Hopper attention kernel.
#pragma once

#include <cmath>

#include "kernels/attention_bias.cuh"

namespace quintet::cuda {

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
      const float f = Distance(bias, static_cast<float>(first_key - row)) * inverse_length_[half];
      Enter(bias, half, bias.FireSegment(f));
    }
  }

  // scores = scores * scale + bias; `delta` is the distance of the lane's first query and key.
  template <int kGroups>
  __device__ __forceinline__ void Add(const HeadBias& bias, float (&scores)[kGroups][4], int delta,
                                      float scale) {
    const float first = static_cast<float>(delta);
    float before[2] = {Distance(bias, first - 8.0f), Distance(bias, first - 7.0f)};
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      // Eight keys and eight queries further lie on the same diagonal.
      const float here[2] = {Distance(bias, first + static_cast<float>(8 * j)),
                             Distance(bias, first + static_cast<float>(8 * j + 1))};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float f0 = (half == 0 ? here[0] : before[0]) * inverse_length_[half];
        const float f1 = (half == 0 ? here[1] : before[1]) * inverse_length_[half];
        float value0 = fmaf(f0, slope_[half], offset_[half]);
        float value1 = fmaf(f1, slope_[half], offset_[half]);
        if (f1 <= floor_[half]) {
          value0 = Walk(bias, half, f0);
          value1 = Walk(bias, half, f1);
        }
        scores[j][2 * half] = fmaf(scores[j][2 * half], scale, value0);
        scores[j][2 * half + 1] = fmaf(scores[j][2 * half + 1], scale, value1);
      }
      before[0] = here[0];
      before[1] = here[1];
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
    floor_[half] = bias.FireFloor(segment);
    const float2 line = bias.FireLine(segment);
    slope_[half] = line.x;
    offset_[half] = line.y;
  }
  __device__ __forceinline__ float Walk(const HeadBias& bias, int half, float f) {
    while (f <= floor_[half]) Enter(bias, half, segment_[half] - 1);
    return fmaf(f, slope_[half], offset_[half]);
  }

  float inverse_length_[2];
  float floor_[2], slope_[2], offset_[2];  // of the segments where the queries are
  int segment_[2];
};

}  // namespace quintet::cuda
