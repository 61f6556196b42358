#include <algorithm>

#include "kernels/base/carver.h"
#include "kernels/cuda_ops.h"
#include "kernels/linear/gemm.cuh"
#include "kernels/runtime/cuda.cuh"
#include "kernels/runtime/e4m3.cuh"

// GEMM dispatch on the GPU. bf16 and f16 weights have kernels of their own for up to eight rows
// (linear/gemv.cu) and, on Hopper, for tens and hundreds of rows (linear/split_k.cu) and for many
// rows (linear/persistent.cu). Quantised weights have theirs in linear/quantized.cu (few rows),
// linear/split_k.cu, linear/byte_gemm.cu and linear/sliced.cu. Any other GEMM with unquantised
// weights runs in up to three stages on the stream:
// 1. Convert x to the weight type if it has another dtype. (GEMMs of linear/persistent.cu, which
//    have no other stages, need this conversion as well.)
// 2. GEMM: cuBLASLt for bf16 and f16 (tensor cores, f32 accumulation; linear/cublas_plans.cuh),
//    TileGemm below for f32. It includes the epilogue if cuBLASLt or TileGemm supports it.
// 3. If stage 2 does not include the epilogue: an epilogue pass (EpilogueKernel) over the result of
//    stage 2 in scratch. Gated activations, activations that cuBLASLt lacks, and scattered outputs
//    need it. (A cache page holds [layer, k|v, head, slot, channel], so one row of the result
//    becomes layers * 2 * heads separate runs of head_dim values, which no leading dimension of
//    cuBLASLt can describe.)
// Stages 1 and 3 process rows in chunks, which bounds the scratch.

namespace quintet::cuda {

namespace {

// A call that needs scratch memory is processed in chunks of rows. The members are the maximum
// number of rows of a chunk in two cases. product: the GEMM result goes to scratch, for a separate
// epilogue pass. x: there is no epilogue pass, but x has to be converted to the weight type in
// scratch. On Hopper, nearly all GEMMs that have more than `product` rows and would need an
// epilogue pass run in linear/persistent.cu without one, so a small `product` is enough there.
struct Pieces {
  int64_t x, product;
};
Pieces PiecesOf(const WeightView& w, const CudaStream& stream) {
  if (stream.hopper() && IsHalf(w.type())) return {4096, MinPersistentRows(w)};
  return {1024, 1024};
}

DType TypeOf(const WeightView& w) {
  return w.type() == WeightType::kF32    ? DType::kF32
         : w.type() == WeightType::kBF16 ? DType::kBF16
                                         : DType::kF16;
}

int64_t OutputColumns(const WeightView& w) { return w.gated() ? w.n() / 2 : w.n(); }

// ---- Stage 1: conversion of x to the weight type ----

constexpr int kWidth = 8;  // consecutive values per thread if alignment allows vectors

// y = x in another dtype.
// Shapes: x [rows, columns], any row stride; y dense.
// Mapping: a thread converts kEach consecutive values; blockIdx.y is the row.
// Bound: launch latency for the final hidden states of a decoder step; for encoder outputs, the
// bytes of x and y, read and written once.
// Tests: tests/kernels/linear/linear_test.cc.
template <typename In, typename Out, int kEach>
__global__ void ConvertKernel(const In* x, int64_t x_stride, int64_t columns, Out* y) {
  WaitOnDependentGrids();
  const int64_t row = blockIdx.y;
  const int64_t c = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * kEach;
  if (c >= columns) return;
  float values[kEach];
  LoadConsecutive(x + row * x_stride + c, values);
  StoreConsecutive(values, y + row * columns + c);
}

template <typename Out>
void Convert(const Tensor& x, const Tensor& y, CudaStream& stream) {
  const int64_t rows = x.dim[0], columns = x.dim[1];
  const bool vectors = Vectorizable(x) && columns % kWidth == 0;
  const int64_t threads = vectors ? columns / kWidth : columns;
  const dim3 grid(static_cast<unsigned>((threads + 255) / 256), static_cast<unsigned>(rows));
  Launch(stream, grid, dim3(256), 0,
         vectors ? ConvertKernel<float, Out, kWidth> : ConvertKernel<float, Out, 1>, x.as<float>(),
         x.stride[0], columns, y.as<Out>());
}

// ---- Stage 2: the GEMM for f32 weights ----

template <typename T, typename Out>
struct TileArgs {
  const T* x;
  const T* w;           // [n, k] dense
  const float* bias;    // f32, or null
  const Out* out_bias;  // of y's type, or null
  const Out* residual;
  Out* y;
  int64_t x_stride, residual_stride, y_stride;
  int64_t rows, n, k;
  float alpha;
  Activation activation;
};

constexpr int kTileThreads = 256;
constexpr int kTileDepth = 32;  // values of k staged at once

// f32 GEMM: y = activation(alpha * x W^T + bias) + residual.
// Shapes: x [rows, k], W [n, k], bias [n] f32, residual and y [rows, n]; any row strides.
// Accumulation: every element is one chain of f32 fused multiply-adds over k in ascending order, as
// on the CPU, so the result of a row is bit-identical alone and in any batch.
// Mapping: a CTA computes kRows x kColumns of y; a thread computes kRowsEach x kColumnsEach of
// them, kRowThreads rows and kColumnThreads columns apart. Both operands are staged in shared
// memory, kTileDepth values of k at a time.
// Bound: f32 multiply-adds. This is the exact path, not the fast one; bf16 and f16 use it only for
// shapes that cuBLASLt rejects.
// Tests: tests/kernels/linear/linear_test.cc.
template <typename T, typename Out, int kRows, int kColumns>
__global__ void __launch_bounds__(kTileThreads) TileGemm(TileArgs<T, Out> a) {
  constexpr int kColumnThreads = kColumns < 32 ? kColumns : kRows >= 64 ? 16 : 32;
  constexpr int kRowThreads = kTileThreads / kColumnThreads;
  constexpr int kRowsEach = kRows / kRowThreads, kColumnsEach = kColumns / kColumnThreads;
  __shared__ float xs[kTileDepth][kRows + 1];
  __shared__ float ws[kTileDepth][kColumns + 1];
  WaitOnDependentGrids();
  const int64_t row = int64_t{blockIdx.y} * kRows, column = int64_t{blockIdx.x} * kColumns;
  const int tr = static_cast<int>(threadIdx.x) / kColumnThreads;
  const int tc = static_cast<int>(threadIdx.x) % kColumnThreads;
  float sums[kRowsEach][kColumnsEach] = {};
  for (int64_t k = 0; k < a.k; k += kTileDepth) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kTileDepth; i += kTileThreads) {
      const int r = i / kTileDepth, d = i % kTileDepth;
      const bool inside = row + r < a.rows && k + d < a.k;
      xs[d][r] = inside ? ToF32(a.x[(row + r) * a.x_stride + k + d]) : 0.0f;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kColumns * kTileDepth; i += kTileThreads) {
      const int c = i / kTileDepth, d = i % kTileDepth;
      const bool inside = column + c < a.n && k + d < a.k;
      ws[d][c] = inside ? ToF32(a.w[(column + c) * a.k + k + d]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < kTileDepth; ++d) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnsEach; ++j) {
          sums[i][j] =
              fmaf(xs[d][tr + i * kRowThreads], ws[d][tc + j * kColumnThreads], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnsEach; ++j) {
      const int64_t r = row + tr + i * kRowThreads, c = column + tc + j * kColumnThreads;
      if (r >= a.rows || c >= a.n) continue;
      float v = a.alpha * sums[i][j];
      if (a.bias != nullptr) v += a.bias[c];
      if (a.out_bias != nullptr) v += ToF32(a.out_bias[c]);
      v = Activated(a.activation, v);
      if (a.residual != nullptr) v += ToF32(a.residual[r * a.residual_stride + c]);
      a.y[r * a.y_stride + c] = FromF32<Out>(v);
    }
  }
}

template <typename T, typename Out>
void LaunchTiles(const Gemm& p, CudaStream& stream) {
  const TileArgs<T, Out> a{p.x.as<T>(),
                           static_cast<const T*>(p.w->panels()),
                           p.bias.dtype == DType::kF32 ? p.bias.as<float>() : nullptr,
                           p.bias.dtype == DType::kF32 ? nullptr : p.bias.as<Out>(),
                           p.residual.as<Out>(),
                           p.y.as<Out>(),
                           p.x.stride[0],
                           p.residual.stride[0],
                           p.y.stride[0],
                           p.x.dim[0],
                           p.w->n(),
                           p.w->k(),
                           p.alpha,
                           p.activation};
  const auto blocks = [](int64_t total, int64_t tile) {
    return static_cast<unsigned>((total + tile - 1) / tile);
  };
  if (a.rows <= 16) {
    Launch(stream, dim3(blocks(a.n, 32), blocks(a.rows, 8)), dim3(kTileThreads), 0,
           TileGemm<T, Out, 8, 32>, a);
  } else {
    Launch(stream, dim3(blocks(a.n, 64), blocks(a.rows, 64)), dim3(kTileThreads), 0,
           TileGemm<T, Out, 64, 64>, a);
  }
}

void RunTiles(const Gemm& p, CudaStream& stream) {
  DispatchDType(p.x.dtype, [&](auto in) {
    using T = typename decltype(in)::type;
    if (p.y.dtype == DType::kF32) return LaunchTiles<T, float>(p, stream);
    QT_CHECK(p.y.dtype == p.x.dtype);
    LaunchTiles<T, T>(p, stream);
  });
}

void RunGemm(const Gemm& p, CudaStream& stream) {
  if (p.w->type() != WeightType::kF32) {
    if (RunCublasLt(p, stream)) return;
  }
  RunTiles(p, stream);
}

// ---- Stage 3: the epilogue pass ----

template <typename In, typename Out>
struct EpilogueArgs {
  const In* product;    // [rows, n] dense, scaled
  const float* bias;    // [n] f32, or null
  const Out* out_bias;  // [n] of y's type, or null
  const Out* residual;
  Out* y;
  int64_t residual_stride, y_stride;
  int64_t columns;    // number of columns of y
  int64_t up_offset;  // 0, or where the up half begins
  Activation activation;
  const int64_t* row_offset;  // scatter, or null
  const int64_t* chunk_offset;
  int64_t chunk;
  bool to_e4m3;  // scatter: y is an array of e4m3; values are rounded to Out first
};

// Epilogue pass over a GEMM result (`product`): y = activation(product + bias) + residual. With a
// gated weight, y = activation(gate) * up + residual, where gate and up are the two halves of
// product + bias. y is row-major or scattered (ScatterOutput). Computed in f32.
// Shapes: product [rows, n] dense; y [rows, columns], columns n or n / 2.
// Mapping: a thread computes kEach consecutive values; blockIdx.y is the row.
// Bound: the product read and y written once; 1024 rows of T5-base's 18432 cross-attention K and V
// channels on an H200: 75 MB, 17 us at 4.3 TB/s.
// Tests: tests/kernels/linear/linear_test.cc. Measurements: linear/NOTES.md.
template <typename In, typename Out, int kEach>
__global__ void EpilogueKernel(EpilogueArgs<In, Out> a) {
  WaitOnDependentGrids();
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (c >= a.columns) return;
  const int64_t row = blockIdx.y;
  const In* product = a.product + row * (a.up_offset + a.columns);
  const auto load = [&](int64_t at, float(&v)[kEach]) {
    LoadConsecutive(product + at, v);
    if (a.bias == nullptr && a.out_bias == nullptr) return;
    float bias[kEach];
    a.bias != nullptr ? LoadConsecutive(a.bias + at, bias) : LoadConsecutive(a.out_bias + at, bias);
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] += bias[j];
  };
  float v[kEach], other[kEach];
  load(c, v);
#pragma unroll
  for (int j = 0; j < kEach; ++j) v[j] = Activated(a.activation, v[j]);
  if (a.up_offset > 0) {
    load(c + a.up_offset, other);
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] *= other[j];
  }
  if (a.residual != nullptr) {
    LoadConsecutive(a.residual + row * a.residual_stride + c, other);
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] += other[j];
  }
  Out* y = a.y + row * a.y_stride + c;
  if (a.row_offset != nullptr) {
    const int chunk = static_cast<int>(a.chunk);
    const int64_t at = a.row_offset[row] + a.chunk_offset[c / chunk] + c % chunk;
    if constexpr (sizeof(Out) == 2) {
      if (a.to_e4m3) {
        RoundAndStoreE4m3<Out, kEach>(v, reinterpret_cast<uint8_t*>(a.y) + at);
        return;
      }
    }
    y = a.y + at;
    if (reinterpret_cast<uintptr_t>(y) % 16 != 0) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) y[j] = FromF32<Out>(v[j]);
      return;
    }
  }
  StoreConsecutive(v, y);
}

// Whether EpilogueKernel can use 16-byte vectors. It can if every group of eight columns is aligned
// in all inputs and outputs and, with a scattered output, lies within one chunk (the columns of a
// row that are stored contiguously, see ScatterOutput).
template <typename In, typename Out>
bool UsesVectorEpilogue(const EpilogueArgs<In, Out>& a) {
  const auto aligned = [](const auto* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const int64_t steps = a.columns | a.residual_stride | a.y_stride | a.chunk;
  return steps % kWidth == 0 && aligned(a.product) && aligned(a.bias) && aligned(a.out_bias) &&
         aligned(a.residual) && aligned(a.y);
}

template <typename In, typename Out>
void LaunchFinish(const LinearArgs& args, const Tensor& product, int64_t first_row,
                  CudaStream& stream) {
  EpilogueArgs<In, Out> a{};
  a.product = product.as<In>();
  if (args.bias.dtype == DType::kF32) {
    a.bias = args.bias.as<float>();
  } else {
    a.out_bias = args.bias.as<Out>();
  }
  a.columns = OutputColumns(*args.w);
  a.up_offset = args.w->gated() ? a.columns : 0;
  a.activation = args.activation;
  const int64_t rows = product.dim[0];
  if (args.scatter.base != nullptr) {
    a.y = static_cast<Out*>(args.scatter.base);
    a.row_offset = stream.DevicePtr(args.scatter.row_offset) + first_row;
    a.chunk_offset = stream.DevicePtr(args.scatter.chunk_offset);
    a.chunk = args.scatter.chunk;
    a.to_e4m3 = args.scatter.dtype == DType::kF8;
  } else {
    a.y = args.y.as<Out>() + first_row * args.y.stride[0];
    a.y_stride = args.y.stride[0];
    if (args.residual.defined()) {
      a.residual = args.residual.as<Out>() + first_row * args.residual.stride[0];
      a.residual_stride = args.residual.stride[0];
    }
  }
  const bool vectors = UsesVectorEpilogue(a);
  const int64_t threads = vectors ? a.columns / kWidth : a.columns;
  const dim3 grid(static_cast<unsigned>((threads + 255) / 256), static_cast<unsigned>(rows));
  Launch(stream, grid, dim3(256), 0,
         vectors ? EpilogueKernel<In, Out, kWidth> : EpilogueKernel<In, Out, 1>, a);
}

// Whether the GEMM of stage 2 (cuBLASLt, or TileGemm for f32) can compute the whole epilogue. If
// not, it computes only alpha * x W^T, and a separate kernel (stage 3, EpilogueKernel) applies
// bias, activation and residual.
bool GemmSupportsEpilogue(const LinearArgs& a, DType type) {
  if (a.w->gated() || a.scatter.base != nullptr) return false;
  if (type == DType::kF32) return true;
  // cuBLASLt can add a bias only if it has the dtype of y, and cannot add a residual after GELU or
  // ReLU.
  if (a.bias.defined() && a.bias.dtype != a.y.dtype) return false;
  if (a.activation == Activation::kNone) return true;
  return !a.residual.defined() &&
         (a.activation == Activation::kRelu || a.activation == Activation::kGeluTanh);
}

struct Scratch {
  void* workspace;
  void* x;        // a chunk of x converted to the weight type
  void* product;  // [chunk rows, n] of the weight type
  int64_t bytes;
};

Scratch Carve(void* base, const WeightView& w, int64_t rows, const CudaStream& stream) {
  const int64_t size = DTypeBytes(TypeOf(w));
  const Pieces pieces = PiecesOf(w, stream);
  const bool converts = w.type() != WeightType::kF32;
  Carver carver(base);
  Scratch s;
  s.workspace = carver.Take(converts ? kCublasLtWorkspaceBytes : 0);
  s.x = carver.Take(converts ? std::min(rows, pieces.x) * w.k() * size : 0);
  s.product = carver.Take(std::min(rows, pieces.product) * w.n() * size);
  s.bytes = carver.used_bytes();
  return s;
}

Tensor ConvertX(const Tensor& x, DType type, void* scratch, CudaStream& stream) {
  if (x.dtype == type) return x;
  QT_CHECK(x.dtype == DType::kF32);
  const Tensor y = Tensor::Dense(scratch, type, {x.dim[0], x.dim[1]});
  type == DType::kBF16 ? Convert<__nv_bfloat16>(x, y, stream) : Convert<__half>(x, y, stream);
  return y;
}

// Runs stage 3, the epilogue pass, on `product`: the results of stage 2, the GEMM, for consecutive
// rows of the call. The first of them is row first_row.
void Finish(const LinearArgs& args, const Tensor& product, int64_t first_row, CudaStream& stream) {
  const DType out = args.scatter.base != nullptr ? args.scatter.dtype : args.y.dtype;
  DispatchDType(product.dtype, [&](auto in) {
    using In = typename decltype(in)::type;
    if (out == DType::kF32) return LaunchFinish<In, float>(args, product, first_row, stream);
    QT_CHECK(out == product.dtype || (out == DType::kF8 && product.dtype != DType::kF32));
    LaunchFinish<In, In>(args, product, first_row, stream);
  });
}

// Returns the arguments of the call restricted to its rows [begin, end). `x` holds these rows of
// the input, in the weight type; it becomes the `x` of the result.
LinearArgs RowsOf(const LinearArgs& args, const Tensor& x, int64_t begin, int64_t end) {
  LinearArgs part = args;
  part.x = x;
  if (args.residual.defined()) part.residual = args.residual.Rows(begin, end);
  if (args.scatter.base != nullptr) {
    part.scatter.row_offset += begin;
  } else {
    part.y = args.y.Rows(begin, end);
  }
  return part;
}

// Returns the arguments of the whole call for RunGemv. If the output is scattered, which RunGemv
// does not support, member `w` of the result is null.
Gemm WholeGemm(const LinearArgs& args) {
  Gemm p{};
  if (args.scatter.base != nullptr) return p;
  p.x = args.x;
  p.w = args.w;
  p.bias = args.bias;
  p.residual = args.residual;
  p.y = args.y;
  p.alpha = args.alpha;
  p.activation = args.activation;
  p.norm_gamma = args.norm_gamma;
  p.norm_beta = args.norm_beta;
  p.norm_eps = args.norm_eps;
  p.kv = args.kv;
  p.x_squares = args.x_squares;
  p.next_norm = args.next_norm;
  return p;
}

// A view of the weight as a matrix of n output channels: the gate rows, then the up rows.
WeightView WithoutGates(const WeightView& w) {
  return WeightView(w.panels(), w.n(), w.k(), w.type(), false);
}

}  // namespace

int64_t LinearScratchBytes(const WeightView& w, int64_t rows, const CudaStream& stream) {
  if (IsQuantized(w.type())) return QuantizedScratchBytes(w, rows, stream);
  // A call with a row_bias multiplies by WithoutGates(w), which may need more scratch memory than
  // w.
  return std::max(Carve(nullptr, w, rows, stream).bytes,
                  Carve(nullptr, WithoutGates(w), rows, stream).bytes);
}

namespace {

// The GEMM computes no activation; it adds alpha * x W^T + bias to row_bias in place. An epilogue
// pass then computes y from this sum.
void LinearWithRowBias(const LinearArgs& args, CudaStream& stream) {
  const WeightView weight = WithoutGates(*args.w);
  const Tensor product = args.row_bias;
  LinearArgs sum;
  sum.x = args.x;
  sum.w = &weight;
  sum.bias = args.bias;
  sum.alpha = args.alpha;
  sum.residual = product;
  sum.y = product;
  sum.scratch = args.scratch;
  cuda::Linear(sum, stream);
  LinearArgs activation = args;
  activation.bias = {};
  Finish(activation, product, 0, stream);
}

// Copies K and V from y to the cache; for calls in which no GEMM epilogue stored them there.
void StoreKvAfter(const LinearArgs& args, CudaStream& stream) {
  const KvCache& cache = *args.kv.cache;
  const int64_t inner = cache.heads * cache.head_dim;
  const auto heads = [&](int64_t part) {
    return args.y.Columns(part * inner, (part + 1) * inner).SplitLast(cache.head_dim);
  };
  cuda::StoreKv({.k = heads(1),
                 .v = heads(2),
                 .cache = &cache,
                 .layer = args.kv.layer,
                 .slots = args.kv.slots},
                stream);
}

}  // namespace

void Linear(const LinearArgs& args, CudaStream& stream) {
  if (args.x.dim[0] == 0) return;
  if (args.lora.weight != nullptr && args.lora.adapters.empty()) {
    return MergedLoraLinear(args, stream);
  }
  const bool quantized = IsQuantized(args.w->type());
  if (args.row_bias.defined() && !quantized) return LinearWithRowBias(args, stream);
  if (RunSplitK(args, stream) || (!quantized && RunGemv(WholeGemm(args), stream))) return;
  LinearArgs product = args;
  product.kv = {};
  quantized ? QuantizedLinear(product, stream) : WideLinear(product, stream);
  if (args.kv.cache != nullptr) StoreKvAfter(args, stream);
}

bool SupportsFusedNorm(const LinearArgs& args, const CudaStream& stream) {
  return QuantizesInputs(args.w->type()) ? ByteGemmTakes(args, stream)
                                         : GemvSupportsFusedNorm(*args.w, args.x.dim[0]);
}

bool SupportsKvStore(const WeightView& w, int64_t rows, const CudaStream& stream) {
  return GemvSupportsKvStore(w, rows) || SplitKSupportsKvStore(w, rows, stream);
}

bool SupportsLora(const LinearArgs& args, const CudaStream& stream) {
  return args.lora.adapters.empty() ? SupportsMergedLora(args) : SplitKSupportsLora(args, stream);
}

int64_t SplitNormParts(const WeightView& w, int64_t rows, const CudaStream& stream) {
  if (SplitKSupportsKvStore(w, rows, stream)) return SplitKSplitNormParts(w, rows, stream);
  return GemvSplitNormParts(w, rows);
}

bool SupportsSplitNormInput(const WeightView& w, int64_t rows, const CudaStream& stream) {
  return GemvSupportsSplitNormInput(w, rows) || SplitKSupportsSplitNormInput(w, rows, stream);
}

void WideLinear(const LinearArgs& args, CudaStream& stream) {
  if (args.row_bias.defined()) return LinearWithRowBias(args, stream);
  const WeightView& w = *args.w;
  const int64_t rows = args.x.dim[0];
  const DType type = TypeOf(w);
  QT_CHECK(!args.norm_gamma.defined() && args.kv.cache == nullptr);
  QT_CHECK(!args.x_squares.defined() && !args.next_norm.gamma.defined());
  const bool direct = GemmSupportsEpilogue(args, type);
  const bool many = PersistentTakes(args, stream);
  const Scratch scratch = Carve(args.scratch.data, w, rows, stream);
  QT_CHECK_GE(args.scratch.elements(), scratch.bytes);
  const Pieces pieces = PiecesOf(w, stream);
  const int64_t piece = !many && !direct ? pieces.product : args.x.dtype != type ? pieces.x : rows;
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t end = std::min(begin + piece, rows);
    const Tensor x = ConvertX(args.x.Rows(begin, end), type, scratch.x, stream);
    if (many) {
      PersistentLinear(RowsOf(args, x, begin, end), stream);
      continue;
    }
    Gemm p{};
    p.x = x;
    p.w = &w;
    p.alpha = args.alpha;
    p.workspace = scratch.workspace;
    if (direct) {
      p.bias = args.bias;
      p.activation = args.activation;
      p.y = args.y.Rows(begin, end);
      if (args.residual.defined()) p.residual = args.residual.Rows(begin, end);
      RunGemm(p, stream);
    } else {
      p.y = Tensor::Dense(scratch.product, type, {end - begin, w.n()});
      RunGemm(p, stream);
      Finish(args, p.y, begin, stream);
    }
  }
}

}  // namespace quintet::cuda
