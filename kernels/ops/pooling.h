// Pooling: combines rows of hidden states into one row, for example an input's mean.
//
// Sums are f64, over the rows in ascending order, and are rounded once to f32; therefore both
// backends give the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// The function that combines the rows x[0], x[1], ... of a segment, column by column. The weight
// w(i) of row i is first_weight + i for kWeightedMean and 1 otherwise.
enum class RowPooling : int32_t {
  kMean,          // sum of w(i) x[i] / sum of w(i)
  kWeightedMean,  // the same
  kMeanSqrtLen,   // sum of x[i] / sqrt(number of rows)
  kMax,           // largest value of each column
};

// Rows [begin, end) of x, at least one, are combined into row y_row of y.
struct PoolSegment {
  int32_t begin, end;
  int32_t y_row;
  int32_t first_weight = 1;  // for kWeightedMean; at least 1
  RowPooling pooling = RowPooling::kMean;
};

struct PoolRowsArgs {
  Tensor x;                               // [rows, d] f32
  std::span<const PoolSegment> segments;  // pinned host array with a device copy
  Tensor y;  // [y_rows, d] f32, not overlapping x; on a GPU the host side of a pinned buffer
};
void PoolRows(const PoolRowsArgs& args, Stream& stream);

// Combines the rows [segment.begin, segment.end) of x [.., d], host memory, into y [d]. y_row is
// not used.
void PoolSegmentRows(const float* x, int64_t d, const PoolSegment& segment, float* y);

}  // namespace quintet
