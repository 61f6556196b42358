#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsAtOnce = 32;  // rows whose norms are computed before they are added

// Kernel arguments: the tensors of RmsNormSumsArgs, as addresses in device memory.
struct NormSumsParams {
  const float* x;
  int64_t x_stride;
  const float* gamma;
  const RowRange* ranges;
  float* y;
  int64_t y_stride;
  int d;
  float eps;
};

// y[i] = sum over the rows r of ranges[i] of x[r] * rsqrt(mean(x[r]^2) + eps) * gamma.
// Shapes: x [rows, d] f32, gamma [d] f32, ranges [gridDim.x], y [gridDim.x, d] f32.
// Numerics: f32; rows are added in ascending order.
// Mapping: one block per range. For 32 rows at a time, each warp computes the scales of four rows;
// then each thread adds the rows for its columns. The second read of a row hits the L1 or L2 cache.
// Bound: reading x once from DRAM.
// Test: tests/kernels/ops/norm_sums_test.cc.
__global__ void __launch_bounds__(kThreads) RmsNormSumsKernel(NormSumsParams a) {
  __shared__ float scales[kRowsAtOnce];
  WaitOnDependentGrids();
  const RowRange range = a.ranges[blockIdx.x];
  float* y = a.y + int64_t{blockIdx.x} * a.y_stride;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  for (int begin = range.begin; begin < range.end; begin += kRowsAtOnce) {
    const int rows = min(kRowsAtOnce, range.end - begin);
    const float* x = a.x + begin * a.x_stride;
    for (int r = warp; r < rows; r += kWarps) {
      float sum = 0.0f;
      for (int c = lane; c < a.d; c += 32) {
        const float value = x[r * a.x_stride + c];
        sum = fmaf(value, value, sum);
      }
      sum = WarpSum(sum);
      if (lane == 0) scales[r] = 1.0f / sqrtf(sum / static_cast<float>(a.d) + a.eps);
    }
    __syncthreads();
    for (int c = thread; c < a.d; c += kThreads) {
      float sum = begin == range.begin ? 0.0f : y[c];
      for (int r = 0; r < rows; ++r) sum += x[r * a.x_stride + c] * scales[r] * a.gamma[c];
      y[c] = sum;
    }
    __syncthreads();  // the scales are overwritten next
  }
}

}  // namespace

void RmsNormSums(const RmsNormSumsArgs& args, CudaStream& stream) {
  const NormSumsParams params = {args.x.as<const float>(),
                                 args.x.stride[0],
                                 args.gamma.as<const float>(),
                                 stream.DevicePtr(args.ranges.data()),
                                 args.y.as<float>(),
                                 args.y.stride[0],
                                 static_cast<int>(args.x.dim[1]),
                                 args.eps};
  Launch(stream, dim3(static_cast<unsigned>(args.ranges.size())), dim3(kThreads), 0,
         RmsNormSumsKernel, params);
}

}  // namespace quintet::cuda
