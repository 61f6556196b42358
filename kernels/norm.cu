#include <algorithm>

#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"

namespace quintet::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kCached = 8;  // values of a row that one thread keeps in registers

template <typename In, typename Out>
struct NormRows {
  const In* x;
  int64_t x_stride;
  const int32_t* rows;  // row of x each row of y comes from, or null
  const float* gamma;
  const float* beta;  // or null
  Out* y;
  int64_t y_stride;
  int d;
  float eps;
};

// What: y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * gamma + beta; RMSNorm has no mean and no
// beta.
// Shapes: x [rows, d] In, y [rows, d] Out, gamma and beta [d] f32; y may alias x when In is Out.
// Math: f32; the variance in a second pass over registers, so no cancellation. Sums run in an order
// given by d and the block alone.
// Map: one block a row, threads stride over d; values are kept in registers where d allows it,
// otherwise read again.
// Bound: rows * d * (sizeof(In) + sizeof(Out)) bytes once; at decoding sizes the launch.
// Spec: tests/kernels/norm_test.cc.
template <typename In, typename Out, bool kCentre>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(NormRows<In, Out> a) {
  __shared__ float shared[32];
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const In* x = a.x + (a.rows == nullptr ? row : a.rows[row]) * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  const int step = static_cast<int>(blockDim.x), first = static_cast<int>(threadIdx.x);
  float kept[kCached];

  float mean = 0.0f, sum = 0.0f;
#pragma unroll
  for (int slot = 0; slot < kCached; ++slot) {
    const int i = first + slot * step;
    kept[slot] = i < a.d ? ToF32(x[i]) : 0.0f;
    sum += kCentre ? kept[slot] : kept[slot] * kept[slot];
  }
  for (int i = first + kCached * step; i < a.d; i += step) {
    const float v = ToF32(x[i]);
    sum += kCentre ? v : v * v;
  }
  sum = BlockSum(sum, shared) / static_cast<float>(a.d);
  if constexpr (kCentre) {
    mean = sum;
    sum = 0.0f;
#pragma unroll
    for (int slot = 0; slot < kCached; ++slot) {
      const float centred = first + slot * step < a.d ? kept[slot] - mean : 0.0f;
      sum += centred * centred;
    }
    for (int i = first + kCached * step; i < a.d; i += step) {
      const float centred = ToF32(x[i]) - mean;
      sum += centred * centred;
    }
    sum = BlockSum(sum, shared) / static_cast<float>(a.d);
  }
  const float scale = 1.0f / sqrtf(sum + a.eps);
  const auto write = [&](int i, float v) {
    v = (v - mean) * scale * a.gamma[i];
    if (kCentre) v += a.beta[i];
    y[i] = FromF32<Out>(v);
  };
#pragma unroll
  for (int slot = 0; slot < kCached; ++slot) {
    const int i = first + slot * step;
    if (i < a.d) write(i, kept[slot]);
  }
  for (int i = first + kCached * step; i < a.d; i += step) write(i, ToF32(x[i]));
}

struct Norm {
  const Tensor& x;
  absl::Span<const int32_t> rows;
  const Tensor& gamma;
  const Tensor& beta;
  const Tensor& y;
  float eps;
};

template <bool kCentre>
void LaunchNorm(const Norm& norm, Stream& stream) {
  const int64_t rows = norm.y.dim[0];
  if (rows == 0) return;
  const int d = static_cast<int>(norm.x.dim[1]);
  DispatchDType(norm.x.dtype, [&](auto in) {
    DispatchDType(norm.y.dtype, [&](auto out) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(out)::type;
      // The residual stream is f32 or the type of the activations.
      if constexpr (std::is_same_v<In, float> || std::is_same_v<In, Out>) {
        NormRows<In, Out> a{norm.x.as<In>(),
                            norm.x.stride[0],
                            norm.rows.empty() ? nullptr : stream.Twin(norm.rows.data()),
                            norm.gamma.as<float>(),
                            norm.beta.as<float>(),
                            norm.y.as<Out>(),
                            norm.y.stride[0],
                            d,
                            norm.eps};
        const int threads = std::min(kMaxThreads, (d + 31) / 32 * 32);
        Launch(stream, dim3(static_cast<unsigned>(rows)), dim3(threads), 0,
               NormKernel<In, Out, kCentre>, a);
      } else {
        QT_CHECK(norm.x.dtype == norm.y.dtype);
      }
    });
  });
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, Stream& stream) {
  LaunchNorm<false>({args.x, args.rows, args.gamma, Tensor(), args.y, args.eps}, stream);
}

void LayerNorm(const LayerNormArgs& args, Stream& stream) {
  LaunchNorm<true>({args.x, args.rows, args.gamma, args.beta, args.y, args.eps}, stream);
}

}  // namespace quintet::cuda
