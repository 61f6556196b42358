// Online softmax on the accumulators of a tensor-core GEMM. The scores of [16 queries, 8 * kGroups
// keys] are C fragments of mma.cuh (wgmma uses the same layout per warp): lane 4 g + t holds the
// scores of queries g and g + 8 for keys 8 j + 2 t and 8 j + 2 t + 1, for each j < kGroups.
#pragma once

#include "kernels/attention/call.cuh"
#include "kernels/ptx/mma.cuh"

namespace quintet::cuda {

// Maximum score of each of the lane's two queries, over those keys whose scores this lane holds.
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

// Running row maximum and row sum of a lane's two queries; row maxima are in log2 units.
struct OnlineSoftmax {
  float row_max[2] = {-INFINITY, -INFINITY};
  float row_sum[2] = {0.0f, 0.0f};  // over this lane's keys only

  // Replaces scores by P = 2^(score * scale + row_bias - row_max), where row_bias is one value per
  // query and scale >= 0. Before that, raises row_max to the maximum of these scores; `largest`
  // must come from LargestScores(scores). Rescales row_sum and adds P to it; the caller must
  // multiply its P V sums by the returned `rescale`. With kAddUp false, P is not added to row_sum,
  // because the caller sums the rounded P itself; row_max is then rounded up to an integer, so that
  // the rounding of P does not depend on tile boundaries.
  template <bool kAddUp = true, int kGroups>
  __device__ __forceinline__ void ComputeProbs(float (&scores)[kGroups][4],
                                               const float (&largest)[2], float scale,
                                               const float (&row_bias)[2], float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_row = largest[half];
      of_row = fmaxf(of_row, __shfl_xor_sync(0xffffffffu, of_row, 1));
      of_row = fmaxf(of_row, __shfl_xor_sync(0xffffffffu, of_row, 2));
      float now = fmaxf(row_max[half], fmaf(of_row, scale, row_bias[half]));
      if constexpr (!kAddUp) now = ceilf(now);
      const float base = now == -INFINITY ? 0.0f : now;  // -inf: no key seen so far
      rescale[half] = Exp2(row_max[half] - base);
      row_max[half] = now;
      row_sum[half] *= rescale[half];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[j][e] = Exp2(fmaf(scores[j][e], scale, row_bias[half] - base));
          if constexpr (kAddUp) row_sum[half] += scores[j][e];
        }
      }
    }
  }
  template <int kGroups>
  __device__ __forceinline__ void ComputeProbs(float (&scores)[kGroups][4], float scale,
                                               float row_bias, float (&rescale)[2]) {
    float largest[2];
    const float row_biases[2] = {row_bias, row_bias};
    LargestScores(scores, largest);
    ComputeProbs(scores, largest, scale, row_biases, rescale);
  }

  // Returns the sum of the whole row to each lane that holds a part of it.
  __device__ __forceinline__ float Sum(int half) const {
    float all = row_sum[half];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    return all + __shfl_xor_sync(0xffffffffu, all, 2);
  }
  // 1 / row sum; 0 for a row that saw no key.
  __device__ __forceinline__ float InverseSum(int half) const {
    const float all = Sum(half);
    return all > 0.0f ? 1.0f / all : 0.0f;
  }
};

template <int kGroups>
__device__ __forceinline__ void Rescale(float (&out)[kGroups][4], const float (&rescale)[2]) {
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] *= rescale[e / 2];
  }
}

// Rounds P of the tile's keys [16 * sixteen, 16 * sixteen + 16) to T and packs it as an A fragment
// (mma.cuh).
template <typename T, int kGroups>
__device__ __forceinline__ void RoundProbs(const float (&probs)[kGroups][4], int sixteen,
                                           uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&from)[4] = probs[2 * sixteen + i / 2];
    a[i] = PackPair<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
  }
}

// Sets to -inf the scores of the keys whose index in the tile is `keys` or higher.
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

// score = score * scale + value(b, half, i) for each score of the lane. i: the score's diagonal,
// which is the key's index in the tile minus the query's index among the warp's 16 queries. b:
// entry i of a bias strip, which has one entry per diagonal. half: 0 for the lane's first query, 1
// for its second. pair(first, i) must return the strip's entries for diagonals first + i and first
// + i + 1, which belong to two neighbouring keys. The second query's index is 8 higher: for group j
// of eight keys it needs the pair that the first query needs for group j - 1. Hence each pair is
// read once.
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

// AddDiagonals with value() = the strip's entry: score = score * scale + strip[i], where i is the
// key's index in the tile minus the query's index among the warp's 16 queries.
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

// Returns the address of the two neighbouring entries of a bias strip that belong to this lane's
// first query and first two keys. The strip has one entry per diagonal (key index minus query
// index); entry number `before` is for the tile's first key and the first of the warp's 16 queries.
// The strip is stored twice: `even` is the whole strip, `odd` lacks the first entry, so every pair
// of neighbours is 8-byte aligned in one of the two.
__device__ __forceinline__ const float2* PairsOfStrip(const float* even, const float* odd,
                                                      int before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int at = before + lane % 4 * 2 - lane / 4;
  return reinterpret_cast<const float2*>((at % 2 == 0 ? even : odd) + at / 2 * 2);
}

// Variant of AddDiagonals whose value() is the bias strip's entry unchanged. pair(j) must return
// the two entries for the lane's first query and its two keys in group j of eight keys. It is also
// called with j = -1: the lane's second query needs that pair in group 0.
template <int kGroups, typename Pair>
__device__ __forceinline__ void AddPairedStrip(float (&scores)[kGroups][4], const Pair& pair,
                                               float scale) {
  AddDiagonals(
      scores, [&](int, int i) { return pair(i / 8); }, scale,
      [](float value, int, int) { return value; });
}

// Sets to -inf the scores of (query, key) pairs that the mask (mask.h) hides, for 16 queries from
// position `row` on and the keys from index `begin` on. kv_len: number of keys of the sequence.
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
        if (column.View(at, at + 1) == TileVisibility::kNone)
          scores[j][2 * half + side] = -INFINITY;
      }
    }
  }
}

}  // namespace quintet::cuda
