// The two phases of selection.cu as its neighbours use them (log_prob.cu has logits of its own):
// summaries of rows, then the ranking of what reaches a bound taken from them.
#pragma once

#include <limits>

#include "kernels/buffer.h"
#include "kernels/cuda.cuh"

namespace quintet::cuda {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
inline constexpr int kGroup = 128;  // neighbours whose maximum is kept: one load of a warp
inline constexpr int kTileGroups = 4;
inline constexpr int kTile = kTileGroups * kGroup;  // neighbours summed by one warp

// Part of a row's log-sum-exp: sum of exp(x - max), or of exp(x) where max is -inf.
struct TileSum {
  float max, sum;
};

// Logits as the kernels read them.
struct LogitRows {
  const float* x;  // [rows, vocab] f32
  int64_t stride;
  int rows, vocab;
  bool vectors;  // rows begin at 16-byte boundaries
  int tiles;     // of each row
};
LogitRows LogitRowsOf(const Tensor& logits);

// What one reading of the rows leaves, in scratch.
struct RowSummaries {
  float* maxima;  // [rows, tiles * kTileGroups]: of each group, NaN aside
  TileSum* sums;  // [rows, tiles]
  int64_t bytes;  // of scratch

  RowSummaries(void* scratch, int64_t rows, int64_t vocab);
};

// Which rows belong together, and how many results each of these requests wants. The arrays are on
// the device; without them every row is a request of its own and wants `k_each`.
struct Requests {
  const int32_t* row_offsets = nullptr;  // [n + 1]
  const int32_t* k = nullptr;            // [n]
  int n = 0, k_each = 0;
};

// Phase one. `sums` only when asked for; rows past the requests' last are left out.
void SummarizeRows(const LogitRows& logits, const Requests& requests, bool want_sums,
                   const RowSummaries& out, Stream& stream);

// Phase two; the terms and results are those of TopKArgs, null when absent.
struct Ranking {
  LogitRows logits;
  RowSummaries summaries;
  Requests requests;
  const float* row_shift = nullptr;
  const float* row_bias = nullptr;
  int64_t shift_stride = 0, bias_stride = 0;
  float* log_sums = nullptr;  // written before it is used
  int64_t log_sums_stride = 0;
  const int32_t* log_softmax = nullptr;  // [n]
  float* values = nullptr;
  int32_t* indices = nullptr;
  int32_t* best = nullptr;  // [n]
  int64_t values_stride = 0, indices_stride = 0;
  int k_max = 0;
};
void RankRows(const Ranking& ranking, Stream& stream);

// Integers in the order of the values; NaN as -inf, both zeros alike.
__device__ __forceinline__ unsigned KeyOf(float value) {
  const unsigned bits = __float_as_uint(value == value ? value + 0.0f : kMinusInf);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float ValueOf(unsigned key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// A row's sum of exponentials: log-sum-exp = max + log(sum).
struct RowSum {
  float max;
  double sum;
};

// The whole warp gets the sum of a row's tiles, added in an order that their number alone decides.
__device__ __forceinline__ RowSum MergeTiles(const TileSum* tiles, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float max = kMinusInf;
  for (int t = lane; t < n; t += 32) max = fmaxf(max, tiles[t].max);
  max = WarpMax(max);
  const float reference = max == kMinusInf ? 0.0f : max;
  double sum = 0.0;
  for (int t = lane; t < n; t += 32) {
    sum += static_cast<double>(tiles[t].sum) * static_cast<double>(expf(tiles[t].max - reference));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return {max, sum};
}

}  // namespace quintet::cuda
