// The online softmax on the accumulators of a tensor-core product: scores [16 queries, 8 kGroups
// keys] as fragments C of mma.cuh (wgmma's have the same layout for each warp), so lane 4 g + t has
// queries g and g + 8 and keys 8 j + 2t, 8 j + 2t + 1.
#pragma once

#include "kernels/attention_call.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {

// What PackPair made of two values.
template <typename T>
__device__ __forceinline__ float2 UnpackPair(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

// Largest score and sum of weights of a lane's two queries so far; in units of log2.
struct OnlineSoftmax {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // of this lane's keys alone

  // Scores become weights 2^(score * scale + shift - most); scale >= 0. What was added up before is
  // to be multiplied by shrink. Weights are rounded to Rounded before they are summed; unless that
  // is float, `most` is a whole number, and then a weight's rounding does not depend on where tiles
  // begin and end.
  template <typename Rounded = float, int kGroups>
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
      float now = fmaxf(most[half], fmaf(largest, scale, shift));
      if constexpr (!std::is_same_v<Rounded, float>) now = ceilf(now);
      const float base = now == -INFINITY ? 0.0f : now;  // no key seen so far
      shrink[half] = Exp2(most[half] - base);
      most[half] = now;
      sum[half] *= shrink[half];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = Exp2(fmaf(scores[j][e], scale, shift - base));
        }
        if constexpr (!std::is_same_v<Rounded, float>) {
          const float2 pair =
              UnpackPair<Rounded>(PackPair<Rounded>(scores[j][2 * half], scores[j][2 * half + 1]));
          scores[j][2 * half] = pair.x;
          scores[j][2 * half + 1] = pair.y;
        }
        sum[half] += scores[j][2 * half];
        sum[half] += scores[j][2 * half + 1];
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

// Keys from `keys` on become -inf.
template <int kGroups>
__device__ __forceinline__ void HideFrom(float (&scores)[kGroups][4], int keys) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (j * 8 + lane % 4 * 2 + e % 2 >= keys) scores[j][e] = -INFINITY;
    }
  }
}

// scores = scores * scale + value(at(i), row half e / 2, i): at(i) and at(i + 1) are what the strip
// says of the lane's next two keys of a row. Eight keys further and eight queries further lie on
// the same diagonal: each value is read once. i counts from the first of 16 queries and the first
// key.
template <int kGroups, typename Pair, typename Value>
__device__ __forceinline__ void AddDiagonals(float (&scores)[kGroups][4], const Pair& pair,
                                             float scale, const Value& value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = lane % 4 * 2 - lane / 4;
  float2 before = pair(first, -8);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const float2 here = pair(first, j * 8);
    const float at[4] = {here.x, here.y, before.x, before.y};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[j][e] =
          fmaf(scores[j][e], scale, value(at[e], e / 2, first + j * 8 + e % 2 - e / 2 * 8));
    }
    before = here;
  }
}

// The same with the strip's values as they are.
template <int kGroups>
__device__ __forceinline__ void AddStrip(float (&scores)[kGroups][4], const float* strip,
                                         float scale) {
  AddDiagonals(
      scores,
      [&](int first, int i) {
        return float2{strip[first + i], strip[first + i + 1]};
      },
      scale, [](float value, int, int) { return value; });
}

// The same with two copies of the strip, `odd` from its second value on, both on 8-byte boundaries,
// which begin `before` values before the first of 16 queries and the first key.
template <int kGroups>
__device__ __forceinline__ void AddPairedStrip(float (&scores)[kGroups][4], const float* even,
                                               const float* odd, int before, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int at = before + lane % 4 * 2 - lane / 4;
  const float2* pairs = reinterpret_cast<const float2*>((at % 2 == 0 ? even : odd) + at / 2 * 2);
  AddDiagonals(
      scores, [&](int, int i) { return pairs[i / 2]; }, scale,
      [](float value, int, int) { return value; });
}

// Pairs that a column mask hides become -inf: 16 queries from position `row` on, keys from `begin`
// on of `kv_len`.
template <int kGroups>
__device__ __forceinline__ void HideMasked(float (&scores)[kGroups][4], const SequenceMask& mask,
                                           int row, int begin, int kv_len) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  row += lane / 4;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int key = begin + j * 8 + lane % 4 * 2 + side;
      if (key >= kv_len) continue;
      const MaskTile column = mask.Column(key);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        if (column.View(at, at + 1) == TileView::kNone) scores[j][2 * half + side] = -INFINITY;
      }
    }
  }
}

}  // namespace quintet::cuda
