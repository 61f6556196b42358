// Divides the row counts of GEMMs on a GPU into classes of consecutive numbers. GEMMs that differ
// only in their row counts share a cuBLASLt plan (kernels/linear/cublas_plans.cuh) if these counts
// are in the same class.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quintet {

// Returns the largest power of two up to rows / 8, but at least 1. GEMMs whose row counts are in
// one class share a cuBLASLt plan; the class of `rows` consists of consecutive row counts, at most
// as many as this function returns.
inline int64_t GemmRowStep(int64_t rows) {
  int64_t step = 1;
  while (step * 16 <= rows) step *= 2;
  return step;
}

// Returns the largest row count of the class of `rows`. (GEMMs whose row counts are in one class
// share a cuBLASLt plan.)
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
