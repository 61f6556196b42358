#include <algorithm>
#include <cmath>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

namespace quintet {
namespace {

constexpr int64_t kColumns = 64;  // columns that are combined together

// Pools rows [segment.begin, segment.end) of x to y (segment.pooling: mean, maximum, ...), but only
// columns [0, columns); columns <= kColumns. `x` and `y` point to the first of these columns.
void PoolColumns(const float* x, int64_t d, const PoolSegment& segment, int64_t columns, float* y) {
  const float* const first = x + segment.begin * d;
  if (segment.pooling == RowPooling::kMax) {
    std::copy_n(first, columns, y);
    for (int64_t i = segment.begin + 1; i < segment.end; ++i) {
      for (int64_t c = 0; c < columns; ++c) y[c] = std::max(y[c], x[i * d + c]);
    }
    return;
  }
  const bool weighted = segment.pooling == RowPooling::kWeightedMean;
  double weight = weighted ? segment.first_weight : 1.0, weights = weight;
  double sum[kColumns] = {};
  for (int64_t c = 0; c < columns; ++c) sum[c] = weight * first[c];
  for (int64_t i = segment.begin + 1; i < segment.end; ++i) {
    if (weighted) weight += 1.0;
    weights += weight;
    for (int64_t c = 0; c < columns; ++c) sum[c] += weight * x[i * d + c];
  }
  const double divisor = segment.pooling == RowPooling::kMeanSqrtLen ? std::sqrt(weights) : weights;
  for (int64_t c = 0; c < columns; ++c) y[c] = static_cast<float>(sum[c] / divisor);
}

}  // namespace

void PoolSegmentRows(const float* x, int64_t d, const PoolSegment& segment, float* y) {
  for (int64_t c = 0; c < d; c += kColumns) {
    PoolColumns(x + c, d, segment, std::min(kColumns, d - c), y + c);
  }
}

namespace cpu {

void PoolRows(const PoolRowsArgs& args, ThreadPool& pool) {
  const int64_t d = args.x.dim[1];
  ParallelRows(pool, static_cast<int64_t>(args.segments.size()), d,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const PoolSegment& segment = args.segments[static_cast<size_t>(i)];
                   PoolSegmentRows(args.x.f32(), d, segment, args.y.f32() + segment.y_row * d);
                 }
               });
}

}  // namespace cpu
}  // namespace quintet
