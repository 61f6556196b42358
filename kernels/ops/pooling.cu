#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

constexpr int kThreads = 128;

// y[segment.y_row][c] = the combination of x[segment.begin .. segment.end - 1][c].
// Shapes: x [.., d] f32, segments [gridDim.x], y [.., d] f32 in pinned host memory.
// Numerics: f64 sums over the rows in ascending order, without fused multiply-adds, rounded once.
// Mapping: a block has one segment and kThreads columns; a thread has one column. It loads kAhead
// rows before it adds them.
// Bound: reading x once. The stores of y go over the bus: d * 4 bytes a segment. A copy of the
// hidden states would move d * 4 bytes a row.
// Test: tests/kernels/ops/pooling_test.cc.
__global__ void __launch_bounds__(kThreads)
    PoolRowsKernel(const float* x, const PoolSegment* segments, int d, float* y) {
  constexpr int kAhead = 8;
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  WaitOnDependentGrids();
  const PoolSegment segment = segments[blockIdx.x];
  if (c >= d) return;
  const float* const column = x + c;
  const bool weighted = segment.pooling == RowPooling::kWeightedMean;
  const bool max = segment.pooling == RowPooling::kMax;
  double weight = weighted ? segment.first_weight : 1.0, weights = 0.0, sum = 0.0;
  float most = 0.0f;
  for (int begin = segment.begin; begin < segment.end; begin += kAhead) {
    float values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      values[i] = column[int64_t{min(begin + i, segment.end - 1)} * d];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= segment.end) break;
      const bool first = begin + i == segment.begin;
      const double value = __dmul_rn(weight, static_cast<double>(values[i]));
      sum = first ? value : __dadd_rn(sum, value);
      // Like std::max: a NaN in the first row stays; a NaN in a later row is skipped.
      most = first || most < values[i] ? values[i] : most;
      weights += weight;
      if (weighted) weight += 1.0;
    }
  }
  const double divisor =
      segment.pooling == RowPooling::kMeanSqrtLen ? __dsqrt_rn(weights) : weights;
  y[int64_t{segment.y_row} * d + c] = max ? most : static_cast<float>(__ddiv_rn(sum, divisor));
}

}  // namespace

void PoolRows(const PoolRowsArgs& args, CudaStream& stream) {
  if (args.segments.empty()) return;
  const int64_t d = args.x.dim[1];
  const dim3 grid(static_cast<unsigned>(args.segments.size()),
                  static_cast<unsigned>((d + kThreads - 1) / kThreads));
  Launch(stream, grid, dim3(kThreads), 0, PoolRowsKernel, args.x.as<const float>(),
         stream.DevicePtr(args.segments.data()), static_cast<int>(d), args.y.as<float>());
}

}  // namespace quintet::cuda
