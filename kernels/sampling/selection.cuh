// Internal interface of selection.cu for other .cu files, such as log_prob.cu. Phase one computes
// summaries of every row of logits (RowSummaries). Phase two derives a lower bound of the k-th best
// value from them and ranks only the values that are at or above this bound.
#pragma once

#include <limits>

#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// A group is 128 consecutive tokens of a row: a warp reads it with one 16-byte load per lane. Phase
// one stores the maximum of each group.
inline constexpr int kGroup = 128;
inline constexpr int kTileGroups = 4;
// A tile is 512 consecutive tokens of a row. One warp computes the TileSum of a tile.
inline constexpr int kTile = kTileGroups * kGroup;

// Contribution of one tile to the log-sum-exp of its row. max: greatest logit of the tile. sum: sum
// of exp(x - max) over the tile's logits x; if max is -inf, sum of exp(x).
struct TileSum {
  float max, sum;
};

// A matrix of logits as a kernel argument.
struct LogitRows {
  const float* x;  // [rows, vocab] f32
  int64_t stride;
  int rows, vocab;
  bool vectors;  // rows are aligned to 16 bytes
  int tiles;     // tiles per row
};
LogitRows MakeLogitRows(const Tensor& logits);

// The output of SummarizeRows (phase one), stored in scratch memory.
struct RowSummaries {
  float* maxima;  // [rows, tiles * kTileGroups]: maximum of each group, ignoring NaN
  TileSum* sums;  // [rows, tiles]
  int64_t bytes;  // size of the scratch memory in use

  RowSummaries(void* scratch, int64_t rows, int64_t vocab);
};

// Request i consists of rows [row_offsets[i], row_offsets[i + 1]) and gets k[i] results. Both
// arrays are in device memory. If both are null, every row is its own request and gets k_each
// results.
struct Requests {
  const int32_t* row_offsets = nullptr;  // [n + 1]
  const int32_t* k = nullptr;            // [n]
  int n = 0, k_each = 0;
};

// Phase one: writes the group maxima and, if want_sums, the tile sums of all rows of the requests
// to `out`. Skips the rows after the last request.
void SummarizeRows(const LogitRows& logits, const Requests& requests, bool want_sums,
                   const RowSummaries& out, CudaStream& stream);

// Arguments of RankRows. A pointer points to the data of the TopKArgs member of the same name; it
// is null if that member is optional and the caller has left it empty.
struct RankParams {
  LogitRows logits;
  RowSummaries summaries;
  Requests requests;
  const float* row_shift = nullptr;
  const float* row_bias = nullptr;
  int64_t shift_stride = 0, bias_stride = 0;
  float* log_sums = nullptr;  // RankRows writes it, then uses it as the shift (log_softmax)
  int64_t log_sums_stride = 0;
  const int32_t* log_softmax = nullptr;  // [n]
  float* values = nullptr;
  int32_t* indices = nullptr;
  int32_t* best = nullptr;  // [n]
  int64_t values_stride = 0, indices_stride = 0;
  int k_max = 0;
};
void RankRows(const RankParams& ranking, CudaStream& stream);

// Maps floats to unsigned integers of the same order. NaN gets the key of -inf, and -0 gets the key
// of 0.
__device__ __forceinline__ unsigned KeyOf(float value) {
  const unsigned bits = __float_as_uint(value == value ? value + 0.0f : kMinusInf);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float ValueOf(unsigned key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// max: greatest logit of a row. sum: sum of exp(x - max) over the row's logits x. The row's
// log-sum-exp is max + log(sum).
struct RowSum {
  float max;
  double sum;
};

// Merges the TileSums of the n tiles of a row; called by a whole warp, every lane gets the result.
// The order of summation depends only on n.
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
