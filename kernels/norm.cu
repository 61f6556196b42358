#include <algorithm>

#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"

namespace quintet::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kKept = 4;  // pieces of a row that one thread keeps in registers

template <typename In, typename Out>
struct NormRows {
  const In* x;
  int64_t x_stride;
  const int32_t* from;  // row of x each row of y comes from, or null
  const float* gamma;
  const float* beta;  // or null
  Out* y;
  int64_t y_stride, rows;
  int d;
  bool wide;
  float eps;
};

// kWidth neighbours of a row, 1 or 4; `wide`: four lie where one access takes them.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ __forceinline__ Piece<T, kWidth> LoadPiece(const T* from, bool wide) {
  if (wide) return *reinterpret_cast<const Piece<T, kWidth>*>(from);
  Piece<T, kWidth> piece;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) piece.values[j] = from[j];
  return piece;
}

template <typename T, int kWidth>
__device__ __forceinline__ void StorePiece(const Piece<T, kWidth>& piece, bool wide, T* to) {
  if (wide) {
    *reinterpret_cast<Piece<T, kWidth>*>(to) = piece;
    return;
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) to[j] = piece.values[j];
}

// The sum of a piece's values less `shift`, or of their squares, added to `sum` one by one.
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

// A row's mean (0 in RMSNorm) and what its deviations from that are multiplied by.
struct Moments {
  float mean, scale;
};

template <typename Out, bool kCentre, typename In, int kWidth>
__device__ __forceinline__ Piece<Out, kWidth> Normed(const Piece<In, kWidth>& piece,
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

// What: y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * gamma + beta; RMSNorm has no mean and no
// beta.
// Shapes: x [rows, d] In, y [rows, d] Out, gamma and beta [d] f32; y may alias x when In is Out.
// Math: f32; the variance in a second pass over registers, so no cancellation. Sums run in an order
// given by d and the block alone.
// Map: one block a row; a thread takes kWidth neighbours at a time, 4 where d is a multiple of 4,
// and keeps kKept such pieces in registers; longer rows are read again. `wide` says that a piece is
// one access: it changes the instructions, not the order. Bound: rows * d * (sizeof(In) +
// sizeof(Out)) bytes once; at decoding sizes the launch. Spec: tests/kernels/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kWidth>
__global__ void __launch_bounds__(kMaxThreads) NormKernel(NormRows<In, Out> a) {
  __shared__ float shared[32];
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const In* x = a.x + (a.from == nullptr ? row : a.from[row]) * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  Piece<In, kWidth> kept[kKept];
#pragma unroll
  for (int p = 0; p < kKept; ++p) {
    if (first + p * step < a.d) kept[p] = LoadPiece<kWidth>(x + first + p * step, a.wide);
  }
  // visit(piece, its place) for all of the row that this thread has.
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int p = 0; p < kKept; ++p) {
      if (first + p * step < a.d) visit(kept[p], first + p * step);
    }
    for (int i = first + kKept * step; i < a.d; i += step) {
      visit(LoadPiece<kWidth>(x + i, a.wide), i);
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
    if constexpr (kCentre) beta = LoadPiece<kWidth>(a.beta + i, a.wide);
    const auto gamma = LoadPiece<kWidth>(a.gamma + i, a.wide);
    StorePiece(Normed<Out, kCentre>(piece, m, gamma, beta), a.wide, y + i);
  });
}

constexpr int kMostWarps = 8;  // of a block
constexpr int kParts = 8;      // of a row, at most

// What: as NormKernel, of rows that fit into registers.
// Shapes: as NormKernel; d a multiple of 4, at most kPieces * 128.
// Math: as NormKernel. A row is kParts parts of pieces of 128 values, piece p in part p % kParts. A
// lane adds its values of each part in order, then the parts; then the lanes' sums meet in a
// butterfly: an order that d alone decides, whichever the map.
// Map: kSplit: a block a row, a warp each of its parts, whose sums meet in shared memory.
// Otherwise, for many short rows, a warp a row, as many rows a block as it has warps: no barrier,
// and all loads of a row are under way at once. What the kernel before does not write (weights,
// `from`) is read before the wait. Bound: rows * d * (sizeof(In) + sizeof(Out)) bytes once. f32 to
// bf16 on an H200, 4.24 TB/s: of 16384 x 768 17.8 us, of 2048 47.5. Versions: 1, a block a row
// (NormKernel): 52 us, three barriers for each 3 KB; 2, a warp a row: predicted 21; 19.5, of
// 2048 57.1; 128 x 2048 2.8, 32 x 768 1.3, where a row is one long chain; 3, as here:
// predicted 19.5, -, 1.3, 1.1; 19.5, 47.4, 1.8, 1.1, and a step of Flan-T5-XL at 128 rows 2.95 ms
// after 2.98. Not taken: four parts, 20.7 and 47.8 where all rows are split; weights read
// last, 19.8 and 52.8. Spec: tests/kernels/norm_test.cc.
template <typename In, typename Out, bool kCentre, int kPieces, bool kSplit>
__global__ void __launch_bounds__(kMostWarps * 32) NormPartsKernel(NormRows<In, Out> a) {
  constexpr int kOwn = kSplit ? (kPieces + kParts - 1) / kParts : kPieces;  // pieces of a thread
  __shared__ float of_parts[2][kParts][32];  // sums of values, of squares
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const auto place = [&](int i) { return ((kSplit ? i * kParts + warp : i) * 32 + lane) * 4; };
  const int64_t row = kSplit ? int64_t{blockIdx.x} : int64_t{blockIdx.x} * warps + warp;
  const bool there = row < a.rows;
  const int64_t from = a.from == nullptr || !there ? row : __ldcg(a.from + row);
  Piece<float, 4> gamma[kOwn], beta[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (place(i) >= a.d) continue;
    gamma[i] = LoadPiece<4>(a.gamma + place(i), a.wide);
    if constexpr (kCentre) beta[i] = LoadPiece<4>(a.beta + place(i), a.wide);
  }
  WaitForInputs();
  if (!there) return;
  const In* x = a.x + from * a.x_stride;
  Out* y = a.y + row * a.y_stride;
  Piece<In, 4> own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (place(i) < a.d) own[i] = LoadPiece<4>(x + place(i), a.wide);
  }
  const auto mean_of = [&](float shift, bool square) {
    float parts[kSplit ? 1 : kParts] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float& part = parts[kSplit ? 0 : i % kParts];
      if (place(i) < a.d) part = AddPiece(own[i], shift, square, part);
    }
    float sum = parts[0];
    if constexpr (kSplit) {
      of_parts[square][warp][lane] = sum;
      __syncthreads();
      sum = of_parts[square][0][lane];
    }
#pragma unroll
    for (int p = 1; p < kParts && p < kPieces; ++p) {
      if constexpr (kSplit) {
        if (p < warps) sum += of_parts[square][p][lane];
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
  for (int i = 0; i < kOwn; ++i) {
    if (place(i) >= a.d) continue;
    StorePiece(Normed<Out, kCentre>(own[i], m, gamma[i], beta[i]), a.wide, y + place(i));
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
                            norm.y.dim[0],
                            d,
                            wide,
                            norm.eps};
  const auto grid = [](int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); };
  const auto block = [](int warps) { return dim3(static_cast<unsigned>(warps * 32)); };
  if (d % 4 == 0 && d <= 16 * 128) {
    const int64_t rows = norm.y.dim[0];
    if (d > 8 * 128 || rows <= 4 * stream.device().multiprocessors()) {
      const auto kernel = d <= 8 * 128 ? NormPartsKernel<In, Out, kCentre, 8, true>
                                       : NormPartsKernel<In, Out, kCentre, 16, true>;
      Launch(stream, grid(rows), block(std::min(kParts, (d + 127) / 128)), 0, kernel, a);
      return;
    }
    const auto kernel = d <= 4 * 128   ? NormPartsKernel<In, Out, kCentre, 4, false>
                        : d <= 6 * 128 ? NormPartsKernel<In, Out, kCentre, 6, false>
                                       : NormPartsKernel<In, Out, kCentre, 8, false>;
    Launch(stream, grid((rows + kMostWarps - 1) / kMostWarps), block(kMostWarps), 0, kernel, a);
    return;
  }
  const bool fours = d % 4 == 0;
  const int pieces = fours ? d / 4 : d;
  const auto kernel = fours ? NormKernel<In, Out, kCentre, 4> : NormKernel<In, Out, kCentre, 1>;
  Launch(stream, grid(norm.y.dim[0]), block(std::min(kMaxThreads / 32, (pieces + 31) / 32)), 0,
         kernel, a);
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
