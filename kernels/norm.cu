#include <algorithm>

#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"
#include "kernels/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kKept = 4;  // pieces of a row that one thread keeps in registers

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
  bool wide;
  float eps;
};

// kWidth neighbours of a row; `wide`: they lie on a 16-byte boundary.
template <typename T, int kWidth>
__device__ __forceinline__ void LoadSome(const T* from, bool wide, float (&to)[kWidth]) {
  if constexpr (kWidth == 4 && sizeof(T) == 4) {
    if (wide) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to[j] = ToF32(from[j]);
}

template <typename T, int kWidth>
__device__ __forceinline__ void StoreSome(const float (&from)[kWidth], bool wide, T* to) {
  if constexpr (kWidth == 4 && sizeof(T) == 4) {
    if (wide) {
      *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
      return;
    }
  } else if constexpr (kWidth == 4) {
    if (wide) {
      *reinterpret_cast<uint2*>(to) = {PackPair<T>(from[0], from[1]),
                                       PackPair<T>(from[2], from[3])};
      return;
    }
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to[j] = FromF32<T>(from[j]);
}

// What: y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * gamma + beta; RMSNorm has no mean and no
// beta.
// Shapes: x [rows, d] In, y [rows, d] Out, gamma and beta [d] f32; y may alias x when In is Out.
// Math: f32; the variance in a second pass over registers, so no cancellation. Sums run in an order
// given by d and the block alone.
// Map: one block a row; a thread takes kWidth neighbours at a time, 4 where d is a multiple of 4,
// and keeps kKept such pieces in registers; longer rows are read again. `wide` says that pieces lie
// on 16-byte boundaries: it changes the instructions, not the order. Bound: rows * d * (sizeof(In)
// + sizeof(Out)) bytes once; at decoding sizes the launch. Spec: tests/kernels/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kWidth>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(NormRows<In, Out> a) {
  __shared__ float shared[32];
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const In* x = a.x + (a.rows == nullptr ? row : a.rows[row]) * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  float kept[kKept][kWidth];
#pragma unroll
  for (int p = 0; p < kKept; ++p) {
    if (first + p * step < a.d) LoadSome<In>(x + first + p * step, a.wide, kept[p]);
  }
  // visit(piece, its place) for all of the row that this thread has.
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      if (first + p * step < a.d) visit(kept[p], first + p * step);
    }
    for (int i = first + kKept * step; i < a.d; i += step) {
      float piece[kWidth];
      LoadSome<In>(x + i, a.wide, piece);
      visit(piece, i);
    }
  };
  const auto sum_of = [&](float shift, bool square) {
    float sum = 0.0f;
    for_each([&](const float(&piece)[kWidth], int) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float v = piece[j] - shift;
        sum += square ? v * v : v;
      }
    });
    return BlockSum(sum, shared) / static_cast<float>(a.d);
  };
  const float mean = kCentre ? sum_of(0.0f, false) : 0.0f;
  const float scale = 1.0f / sqrtf(sum_of(mean, true) + a.eps);
  for_each([&](const float(&piece)[kWidth], int i) {
    float out[kWidth], gamma[kWidth], beta[kWidth];
    LoadSome<float>(a.gamma + i, a.wide, gamma);
    if constexpr (kCentre) LoadSome<float>(a.beta + i, a.wide, beta);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      out[j] = (piece[j] - mean) * scale * gamma[j];
      if constexpr (kCentre) out[j] += beta[j];
    }
    StoreSome<Out>(out, a.wide, y + i);
  });
}

constexpr int kMostWarps = 8;  // of a block

// What: as NormKernel, a row a warp.
// Shapes: as NormKernel; d a multiple of 4, at most kPieces * 128.
// Math: as NormKernel; a lane adds its pieces in order, then the lanes' sums meet in a butterfly:
// an order that d alone decides. Map: as many rows a block as it has warps, each held in the
// registers of one warp: no barrier, and all loads of a row are under way at once. Bound: rows * d
// * (sizeof(In) + sizeof(Out)) bytes once. f32 16384 x 768 to bf16 on an H200: 75 MB, 17.6 us
// at 4.3 TB/s. Versions: 1, a block a row (NormKernel): 52 us, three barriers for each 3 KB; 2, a
// warp a row, eight in every block: predicted 21 us; in a step of Flan-T5-XL 2.1 us at 32 rows
// and 2.9 at 128, which 16 blocks read. 3, as here: predicted 1.8 and 2.2. Spec:
// tests/kernels/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kPieces>
__global__ void __launch_bounds__(kMostWarps * 32) NormWarpKernel(NormRows<In, Out> a, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float gamma[kPieces][4], beta[kPieces][4];  // weights: not written by kernels before this one
  const auto place = [lane](int p) { return (p * 32 + lane) * 4; };
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (place(p) >= a.d) continue;
    LoadSome<float>(a.gamma + place(p), a.wide, gamma[p]);
    if constexpr (kCentre) LoadSome<float>(a.beta + place(p), a.wide, beta[p]);
  }
  WaitForInputs();
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const In* x = a.x + (a.rows == nullptr ? row : a.rows[row]) * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  float kept[kPieces][4];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (place(p) < a.d) LoadSome<In>(x + place(p), a.wide, kept[p]);
  }
  const auto sum_of = [&](float shift, bool square) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (place(p) >= a.d) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float v = kept[p][j] - shift;
        sum += square ? v * v : v;
      }
    }
    return WarpSum(sum) / static_cast<float>(a.d);
  };
  const float mean = kCentre ? sum_of(0.0f, false) : 0.0f;
  const float scale = 1.0f / sqrtf(sum_of(mean, true) + a.eps);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (place(p) >= a.d) continue;
    float out[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = (kept[p][j] - mean) * scale * gamma[p][j];
      if constexpr (kCentre) out[j] += beta[p][j];
    }
    StoreSome<Out>(out, a.wide, y + place(p));
  }
}

struct Norm {
  const Tensor& x;
  absl::Span<const int32_t> rows;
  const Tensor& gamma;
  const Tensor& beta;
  const Tensor& y;
  float eps;
};

template <typename In, typename Out, bool kCentre>
void LaunchRows(const Norm& norm, Stream& stream) {
  const int d = static_cast<int>(norm.x.dim[1]);
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && (t.rank == 1 || t.stride[0] % 4 == 0);
  };
  const bool wide = aligned(norm.x) && aligned(norm.y) && aligned(norm.gamma) &&
                    (!norm.beta.defined() || aligned(norm.beta));
  const NormRows<In, Out> a{norm.x.as<In>(),
                            norm.x.stride[0],
                            norm.rows.empty() ? nullptr : stream.Twin(norm.rows.data()),
                            norm.gamma.as<float>(),
                            norm.beta.as<float>(),
                            norm.y.as<Out>(),
                            norm.y.stride[0],
                            d,
                            wide,
                            norm.eps};
  if (d % 4 == 0 && d <= 16 * 128) {
    const int64_t rows = norm.y.dim[0];
    const auto kernel = d <= 4 * 128   ? NormWarpKernel<In, Out, kCentre, 4>
                        : d <= 6 * 128 ? NormWarpKernel<In, Out, kCentre, 6>
                        : d <= 8 * 128 ? NormWarpKernel<In, Out, kCentre, 8>
                                       : NormWarpKernel<In, Out, kCentre, 16>;
    // A step's rows to as many multiprocessors as there are.
    const int64_t shared_out = rows / stream.device().multiprocessors() + 1;
    const int64_t warps = std::min<int64_t>(kMostWarps, shared_out);
    Launch(stream, dim3(static_cast<unsigned>((rows + warps - 1) / warps)),
           dim3(static_cast<unsigned>(warps * 32)), 0, kernel, a, static_cast<int>(rows));
    return;
  }
  const bool fours = d % 4 == 0;
  const int pieces = fours ? d / 4 : d;
  const dim3 threads(static_cast<unsigned>(std::min(kMaxThreads, (pieces + 31) / 32 * 32)));
  const auto kernel = fours ? NormKernel<In, Out, kCentre, 4> : NormKernel<In, Out, kCentre, 1>;
  Launch(stream, dim3(static_cast<unsigned>(norm.y.dim[0])), threads, 0, kernel, a);
}

template <bool kCentre>
void LaunchNorm(const Norm& norm, Stream& stream) {
  if (norm.y.dim[0] == 0) return;
  DispatchDType(norm.x.dtype, [&](auto in) {
    using In = typename decltype(in)::type;
    if constexpr (std::is_same_v<In, float>) {
      DispatchDType(norm.y.dtype, [&](auto out) {
        LaunchRows<float, typename decltype(out)::type, kCentre>(norm, stream);
      });
    } else {
      QT_CHECK(norm.x.dtype == norm.y.dtype);
      LaunchRows<In, In, kCentre>(norm, stream);
    }
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
