// The online softmax on the accumulators of a tensor-core product: scores [16 queries, 8 kGroups
// keys] as fragments C of mma.cuh (wgmma's have the same layout for each warp), so lane 4 g + t has
// queries g and g + 8 and keys 8 j + 2t, 8 j + 2t + 1.
#pragma once

#include "kernels/attention_call.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {

// Of each of a lane's two queries, among the lane's keys.
template <int kGroups>
__device__ __forceinline__ void LargestScores(const float (&scores)[kGroups][4],
                                              float (&largest)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = scores[0][2 * half];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      largest[half] = fmaxf(largest[half], fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
    }
  }
}

// Largest score and sum of weights of a lane's two queries so far; in units of log2.
struct OnlineSoftmax {
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  // of this lane's keys alone

  // Scores become weights 2^(score * scale + shift - most), of each query with its own shift;
  // scale >= 0. What was added up before is to be multiplied by shrink. `largest`: what
  // LargestScores says of them. Unless kAddUp, somebody adds up the weights as they are rounded;
  // `most` is then a whole number, so that their rounding does not depend on where tiles begin.
  template <bool kAddUp = true, int kGroups>
  __device__ __forceinline__ void Weigh(float (&scores)[kGroups][4], const float (&largest)[2],
                                        float scale, const float (&shift)[2], float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_row = largest[half];
      of_row = fmaxf(of_row, __shfl_xor_sync(0xffffffffu, of_row, 1));
      of_row = fmaxf(of_row, __shfl_xor_sync(0xffffffffu, of_row, 2));
      float now = fmaxf(most[half], fmaf(of_row, scale, shift[half]));
      if constexpr (!kAddUp) now = ceilf(now);
      const float base = now == -INFINITY ? 0.0f : now;  // no key seen so far
      shrink[half] = Exp2(most[half] - base);
      most[half] = now;
      sum[half] *= shrink[half];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = Exp2(fmaf(scores[j][e], scale, shift[half] - base));
          if constexpr (kAddUp) sum[half] += scores[j][e];
        }
      }
    }
  }
  template <int kGroups>
  __device__ __forceinline__ void Weigh(float (&scores)[kGroups][4], float scale, float shift,
                                        float (&shrink)[2]) {
    float largest[2];
    const float shifts[2] = {shift, shift};
    LargestScores(scores, largest);
    Weigh(scores, largest, scale, shifts, shrink);
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

// Of two copies of a strip, `odd` from its second value on, both on 8-byte boundaries, which begin
// `before` values before the first of 16 queries and the first key: the lane's first two keys.
__device__ __forceinline__ const float2* PairsOfStrip(const float* even, const float* odd,
                                                      int before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int at = before + lane % 4 * 2 - lane / 4;
  return reinterpret_cast<const float2*>((at % 2 == 0 ? even : odd) + at / 2 * 2);
}

// The same with pair(j), what such a strip has for the lane's keys of group j, from -1 on.
template <int kGroups, typename Pair>
__device__ __forceinline__ void AddPairedStrip(float (&scores)[kGroups][4], const Pair& pair,
                                               float scale) {
  AddDiagonals(
      scores, [&](int, int i) { return pair(i / 8); }, scale,
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
