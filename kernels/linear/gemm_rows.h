// Classes of GEMMs by their number of rows on a GPU. GEMMs of one class share a cuBLASLt plan
// (kernels/linear/cublas_plans.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

namespace quintet {

// The largest power of two up to rows / 8, at least 1: row counts of a class are at most this far
// apart.
inline int64_t GemmRowStep(int64_t rows) {
  int64_t step = 1;
  while (step * 16 <= rows) step *= 2;
  return step;
}

// The largest number of rows of the class of `rows`.
inline int64_t RoundUpGemmRows(int64_t rows) {
  const int64_t step = GemmRowStep(rows);
  return (rows + step - 1) / step * step;
}

// The number of rows to compute if `rows` are needed and there is memory for `most`. A caller whose
// row count changes with every call thereby gives cuBLASLt few different shapes: preparing a call
// for a new shape takes the host longer than the additional rows take the device. Fewer than 256
// rows run through other kernels and are not rounded.
inline int64_t PaddedGemmRows(int64_t rows, int64_t most) {
  constexpr int64_t kLeastRows = 256;
  return rows < kLeastRows ? rows : std::max(rows, std::min(RoundUpGemmRows(rows), most));
}

}  // namespace quintet
