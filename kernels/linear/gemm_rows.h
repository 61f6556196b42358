// Divides the row counts of GEMMs on a GPU into classes. GEMMs that differ only in row counts of
// the same class share a cuBLASLt plan (kernels/linear/cublas_plans.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

namespace quintet {

// The largest power of two up to rows / 8, at least 1. The class of `rows` contains at most this
// many row counts, all consecutive.
inline int64_t GemmRowStep(int64_t rows) {
  int64_t step = 1;
  while (step * 16 <= rows) step *= 2;
  return step;
}

// The largest row count in the class of `rows`.
inline int64_t RoundUpGemmRows(int64_t rows) {
  const int64_t step = GemmRowStep(rows);
  return (rows + step - 1) / step * step;
}

// Returns the number of rows to compute if `rows` rows are needed and there is memory for `most`
// rows. It is for callers whose row count changes with every call: rounding the count up gives
// cuBLASLt few different shapes, and preparing a call for a new shape takes the host longer than
// the additional rows take the device. Fewer than 256 rows run through other kernels and are not
// rounded.
inline int64_t PaddedGemmRows(int64_t rows, int64_t most) {
  constexpr int64_t kLeastRows = 256;
  return rows < kLeastRows ? rows : std::max(rows, std::min(RoundUpGemmRows(rows), most));
}

}  // namespace quintet
