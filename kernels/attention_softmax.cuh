// The online softmax on the accumulators of a tensor-core product: scores [16 queries, 8 kGroups
// keys] as fragments C of mma.cuh (wgmma's have the same layout for each warp), so lane 4 g + t has
// queries g and g + 8 and keys 8 j + 2t, 8 j + 2t + 1.
#pragma once

#include "kernels/attention_bias.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {

// Largest score and sum of weights of a lane's two queries so far; in units of log2.
struct OnlineSoftmax {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // of this lane's keys alone

  // Scores become weights 2^(score * scale + shift - most); scale >= 0. What was added up before is
  // to be multiplied by shrink.
  template <int kGroups>
  __device__ __forceinline__ void Weigh(float (&scores)[kGroups][4], float scale, float shift,
                                        float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = scores[0][2 * half];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float now = fmaxf(most[half], fmaf(largest, scale, shift));
      const float base = now == -INFINITY ? 0.0f : now;  // no key seen so far
      shrink[half] = Exp2(most[half] - base);
      most[half] = now;
      sum[half] *= shrink[half];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = Exp2(fmaf(scores[j][e], scale, shift - base));
          sum[half] += scores[j][e];
        }
      }
    }
  }

  // The whole row's sum, on each of its lanes.
  __device__ __forceinline__ float Sum(int half) const {
    float all = sum[half];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    return all + __shfl_xor_sync(0xffffffffu, all, 2);
  }
  // 1 / sum; 0 for a row that saw no key.
  __device__ __forceinline__ float InverseSum(int half) const {
    const float all = Sum(half);
    return all > 0.0f ? 1.0f / all : 0.0f;
  }
};

template <int kGroups>
__device__ __forceinline__ void Shrink(float (&out)[kGroups][4], const float (&shrink)[2]) {
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] *= shrink[e / 2];
  }
}

// Fragment A of the weights of sixteen keys, rounded to T.
template <typename T, int kGroups>
__device__ __forceinline__ void RoundWeights(const float (&weights)[kGroups][4], int sixteen,
                                             uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&from)[4] = weights[2 * sixteen + i / 2];
    a[i] = PackPair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
  }
}

// What a tile near the diagonal or at the end of the keys adds to the scores of 16 queries.
struct TileBias {
  const float* strip;    // at the distance of the first query and the first key
  int delta;             // that distance
  int keys;              // of the tile; scores past them become -inf
  float scale;           // of scores, into units of log2
  float fire_length[2];  // of this lane's queries; FIRE only
};

// Eight keys further and eight queries further lie on the same diagonal: each value is read once.
template <bool kFire, int kGroups>
__device__ __forceinline__ void AddBias(float (&scores)[kGroups][4], const HeadBias& bias,
                                        const TileBias& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = lane % 4 * 2 - lane / 4;
  float before[2] = {tile.strip[first - 8], tile.strip[first - 7]};
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const float here[2] = {tile.strip[first + j * 8], tile.strip[first + j * 8 + 1]};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float value = e < 2 ? here[e] : before[e - 2];
      if constexpr (kFire) {
        const int delta = tile.delta + first + j * 8 + e % 2 - e / 2 * 8;
        value = bias.Hidden(delta) ? -INFINITY : bias.FireNetwork(value * tile.fire_length[e / 2]);
      }
      scores[j][e] = fmaf(scores[j][e], tile.scale, value);
    }
    before[0] = here[0];
    before[1] = here[1];
  }
  if (tile.keys >= kGroups * 8) return;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (j * 8 + lane % 4 * 2 + e % 2 >= tile.keys) scores[j][e] = -INFINITY;
    }
  }
}

}  // namespace quintet::cuda
