// Sums of normed rows: the inputs of LongT5's global tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Rows [begin, end) of a tensor, at least one.
struct RowRange {
  int32_t begin, end;
};

// y[i] = sum over the rows r of ranges[i], in ascending order, of
// x[r] * rsqrt(mean(x[r]^2) + eps) * gamma. All values and sums are f32. A row of y depends only on
// the rows of its range.
struct RmsNormSumsArgs {
  Tensor x;                          // [rows, d] f32
  Tensor gamma;                      // [d] f32
  std::span<const RowRange> ranges;  // [n], pinned host array with a device copy
  Tensor y;                          // [n, d] f32, not overlapping x
  float eps = 1e-6f;
};
void RmsNormSums(const RmsNormSumsArgs& args, Stream& stream);

}  // namespace quintet
