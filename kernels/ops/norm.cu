#include <algorithm>
#include <span>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kRegisterPieces = 4;  // pieces of a row that one thread holds in registers

// Kernel arguments: the tensors of RmsNormArgs or LayerNormArgs, as addresses in device memory.
template <typename In, typename Out>
struct NormParams {
  const In* x;
  int64_t x_stride;
  const int32_t* from;  // [rows] input row of each output row, or null for the identity
  const float* gamma;
  const float* beta;  // or null
  Out* y;
  int64_t y_stride, rows;
  int d;
  bool vectorized;  // all rows are aligned for pieces of 4 elements
  float eps;
};

// A piece: kWidth (1 or 4) consecutive elements of a row. If parameter `vectorized` of a function
// is true, pieces are aligned, and one vector load or store moves a whole piece.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ __forceinline__ Piece<T, kWidth> LoadPiece(const T* from, bool vectorized) {
  if (vectorized) return *reinterpret_cast<const Piece<T, kWidth>*>(from);
  Piece<T, kWidth> piece;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) piece.values[j] = from[j];
  return piece;
}

template <typename T, int kWidth>
__device__ __forceinline__ void StorePiece(const Piece<T, kWidth>& piece, bool vectorized, T* to) {
  if (vectorized) {
    *reinterpret_cast<Piece<T, kWidth>*>(to) = piece;
    return;
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to[j] = piece.values[j];
}

// Adds v - shift, or (v - shift)^2 if `square`, to `sum` for each value v of the piece in order,
// and returns the result.
template <typename T, int kWidth>
__device__ __forceinline__ float AddPiece(const Piece<T, kWidth>& piece, float shift, bool square,
                                          float sum) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float v = ToF32(piece.values[j]) - shift;
    sum = square ? fmaf(v, v, sum) : sum + v;
  }
  return sum;
}

// Statistics of one row: the mean (0 for RMSNorm) and 1 / sqrt(variance + eps).
struct Moments {
  float mean, scale;
};

template <typename Out, bool kCentre, typename In, int kWidth>
__device__ __forceinline__ Piece<Out, kWidth> NormalizePiece(const Piece<In, kWidth>& piece,
                                                             const Moments& m,
                                                             const Piece<float, kWidth>& gamma,
                                                             const Piece<float, kWidth>& beta) {
  Piece<Out, kWidth> out;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float v = (ToF32(piece.values[j]) - m.mean) * m.scale;
    out.values[j] =
        FromF32<Out>(kCentre ? fmaf(v, gamma.values[j], beta.values[j]) : v * gamma.values[j]);
  }
  return out;
}

// y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * gamma + beta; RMSNorm: mean and beta are 0.
// Shapes: x [rows, d] In, y [rows, d] Out, gamma and beta [d] f32; y may alias x if In == Out.
// Numerics: f32. The variance is computed in a second pass over the values, so there is no
// cancellation. The order of summation depends only on d and the block size; NormParams::vectorized
// does not change it.
// Mapping: one block per row. A thread processes pieces of kWidth columns (4 if d % 4 == 0) and
// holds kRegisterPieces pieces in registers; the rest of a longer row is read again in each pass.
// Bound: rows * d * (sizeof(In) + sizeof(Out)) bytes; launch latency at decoding sizes.
// Test: tests/kernels/ops/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kWidth>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(NormParams<In, Out> a) {
  __shared__ float shared[32];
  WaitOnDependentGrids();
  const int64_t row = blockIdx.x;
  const In* x = a.x + (a.from == nullptr ? row : a.from[row]) * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  Piece<In, kWidth> kept[kRegisterPieces];
#pragma unroll
  for (int p = 0; p < kRegisterPieces; ++p) {
    if (first + p * step < a.d) kept[p] = LoadPiece<kWidth>(x + first + p * step, a.vectorized);
  }
  // Calls visit(piece, first column of the piece) on this thread's pieces of the row.
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int p = 0; p < kRegisterPieces; ++p) {
      if (first + p * step < a.d) visit(kept[p], first + p * step);
    }
    for (int i = first + kRegisterPieces * step; i < a.d; i += step) {
      visit(LoadPiece<kWidth>(x + i, a.vectorized), i);
    }
  };
  const auto mean_of = [&](float shift, bool square) {
    float sum = 0.0f;
    for_each(
        [&](const Piece<In, kWidth>& piece, int) { sum = AddPiece(piece, shift, square, sum); });
    return BlockSum(sum, shared) / static_cast<float>(a.d);
  };
  Moments m;
  m.mean = kCentre ? mean_of(0.0f, false) : 0.0f;
  m.scale = 1.0f / sqrtf(mean_of(m.mean, true) + a.eps);
  for_each([&](const Piece<In, kWidth>& piece, int i) {
    Piece<float, kWidth> beta{};
    if constexpr (kCentre) beta = LoadPiece<kWidth>(a.beta + i, a.vectorized);
    const auto gamma = LoadPiece<kWidth>(a.gamma + i, a.vectorized);
    StorePiece(NormalizePiece<Out, kCentre>(piece, m, gamma, beta), a.vectorized, y + i);
  });
}

constexpr int kMaxWarps = 8;  // warps per block, at most
constexpr int kParts = 8;     // parts per row, at most

// Same as NormKernel (formula, shapes, dtypes), for rows that fit in registers: d % 4 == 0 and d <=
// kPieces * 128.
// Numerics: f32; the variance is computed in a second pass over the registers. A row consists of
// groups of 128 columns, 4 per lane; group p belongs to part p % kParts of the row. Each lane's
// values are added in order within a part, then the sums of the parts are added; a butterfly
// shuffle adds the lanes. This order depends only on d and is the same with and without kSplit.
// Mapping: with kSplit, one block per row and one warp per part; partial sums go through shared
// memory. Without kSplit (many short rows), one warp per row: it needs no barrier and has all loads
// of its row in flight at once. gamma, beta and the row numbers of a gather do not depend on the
// previous kernel and are loaded before WaitOnDependentGrids.
// Bound: rows * d * (sizeof(In) + sizeof(Out)) bytes. 16384 rows, f32 to bf16, on an H200: 19.5 us
// for d = 768 and 47.4 us for d = 2048, where moving as many bytes at 4.24 TB/s takes 17.8 and 47.5
// us. History: kernels/ops/NOTES.md.
// Test: tests/kernels/ops/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kPieces, bool kSplit>
__global__ void __launch_bounds__(kMaxWarps * 32) NormPartsKernel(NormParams<In, Out> a) {
  // Number of pieces (four columns each) that a thread processes.
  constexpr int kThreadPieces = kSplit ? (kPieces + kParts - 1) / kParts : kPieces;
  __shared__ float partial_sums[2][kParts][32];  // [0]: sums of values, [1]: sums of squares
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto column = [&](int i) { return ((kSplit ? i * kParts + warp : i) * 32 + lane) * 4; };
  const int64_t row = kSplit ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * warps + warp;
  const bool in_range = row < a.rows;
  const int64_t from = a.from == nullptr || !in_range ? row : __ldcg(a.from + row);
  Piece<float, 4> gamma[kThreadPieces], beta[kThreadPieces];
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    if (column(i) >= a.d) continue;
    gamma[i] = LoadPiece<4>(a.gamma + column(i), a.vectorized);
    if constexpr (kCentre) beta[i] = LoadPiece<4>(a.beta + column(i), a.vectorized);
  }
  WaitOnDependentGrids();
  if (!in_range) return;
  const In* x = a.x + from * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  Piece<In, 4> pieces[kThreadPieces];
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    if (column(i) < a.d) pieces[i] = LoadPiece<4>(x + column(i), a.vectorized);
  }
  const auto mean_of = [&](float shift, bool square) {
    float parts[kSplit ? 1 : kParts] = {};
#pragma unroll
    for (int i = 0; i < kThreadPieces; ++i) {
      float& part = parts[kSplit ? 0 : i % kParts];
      if (column(i) < a.d) part = AddPiece(pieces[i], shift, square, part);
    }
    float sum = parts[0];
    if constexpr (kSplit) {
      partial_sums[square][warp][lane] = sum;
      __syncthreads();
      sum = partial_sums[square][0][lane];
    }
#pragma unroll
    for (int p = 1; p < kParts && p < kPieces; ++p) {
      if constexpr (kSplit) {
        if (p < warps) sum += partial_sums[square][p][lane];
      } else {
        sum += parts[p];
      }
    }
    return WarpSum(sum) / static_cast<float>(a.d);
  };
  Moments m;
  m.mean = kCentre ? mean_of(0.0f, false) : 0.0f;
  m.scale = 1.0f / sqrtf(mean_of(m.mean, true) + a.eps);
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    if (column(i) >= a.d) continue;
    StorePiece(NormalizePiece<Out, kCentre>(pieces[i], m, gamma[i], beta[i]), a.vectorized,
               y + column(i));
  }
}

struct Norm {
  const Tensor& x;
  std::span<const int32_t> rows;
  const Tensor& gamma;
  const Tensor& beta;
  const Tensor& y;
  float eps;
};

template <typename In, typename Out, bool kCentre>
void LaunchRows(const Norm& norm, CudaStream& stream) {
  const int d = static_cast<int>(norm.x.dim[1]);
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && (t.rank == 1 || t.stride[0] % 4 == 0);
  };
  const bool vectorized = aligned(norm.x) && aligned(norm.y) && aligned(norm.gamma) &&
                          (!norm.beta.defined() || aligned(norm.beta));
  const NormParams<In, Out> a{norm.x.as<In>(),
                              norm.x.stride[0],
                              norm.rows.empty() ? nullptr : stream.DevicePtr(norm.rows.data()),
                              norm.gamma.as<float>(),
                              norm.beta.as<float>(),
                              norm.y.as<Out>(),
                              norm.y.stride[0],
                              norm.y.dim[0],
                              d,
                              vectorized,
                              norm.eps};
  const auto grid = [](int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); };
  const auto block = [](int warps) { return dim3(static_cast<unsigned>(warps * 32)); };
  if (d % 4 == 0 && d <= 16 * 128) {
    const int64_t rows = norm.y.dim[0];
    if (d > 8 * 128 || rows <= 4 * stream.num_sms()) {
      const auto kernel = d <= 8 * 128 ? NormPartsKernel<In, Out, kCentre, 8, true>
                                       : NormPartsKernel<In, Out, kCentre, 16, true>;
      Launch(stream, grid(rows), block(std::min(kParts, (d + 127) / 128)), 0, kernel, a);
      return;
    }
    const auto kernel = d <= 4 * 128   ? NormPartsKernel<In, Out, kCentre, 4, false>
                        : d <= 6 * 128 ? NormPartsKernel<In, Out, kCentre, 6, false>
                                       : NormPartsKernel<In, Out, kCentre, 8, false>;
    Launch(stream, grid((rows + kMaxWarps - 1) / kMaxWarps), block(kMaxWarps), 0, kernel, a);
    return;
  }
  const bool fours = d % 4 == 0;
  const int pieces = fours ? d / 4 : d;
  const auto kernel = fours ? NormKernel<In, Out, kCentre, 4> : NormKernel<In, Out, kCentre, 1>;
  Launch(stream, grid(norm.y.dim[0]), block(std::min(kMaxThreads / 32, (pieces + 31) / 32)), 0,
         kernel, a);
}

template <bool kCentre>
void LaunchNorm(const Norm& norm, CudaStream& stream) {
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

void RmsNorm(const RmsNormArgs& args, CudaStream& stream) {
  LaunchNorm<false>({args.x, args.rows, args.gamma, Tensor(), args.y, args.eps}, stream);
}

void LayerNorm(const LayerNormArgs& args, CudaStream& stream) {
  LaunchNorm<true>({args.x, args.rows, args.gamma, args.beta, args.y, args.eps}, stream);
}

}  // namespace quintet::cuda
