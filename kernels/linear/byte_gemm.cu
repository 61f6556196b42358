// GEMM of 8-bit values on tensor cores, for weights of the types fp8-w8a8 and int8-w8a8 on Hopper:
// x, or a norm of it, is quantised to the type of W, with one scale per row, and multiplied by W in
// the persistent kernel (linear/persistent_kernel.cuh).
#include <algorithm>

#include "kernels/base/carver.h"
#include "kernels/cuda_ops.h"
#include "kernels/linear/byte_weights.cuh"
#include "kernels/linear/persistent_kernel.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {
namespace {

constexpr int64_t kFewRows = 128;     // up to which PersistentTile::kFew is used
constexpr int64_t kPieceRows = 8192;  // rows quantised at a time; bounds the scratch memory

// ---- Quantisation of x ----

constexpr int kEach = 16;  // consecutive values per thread and piece

// The value of largest magnitude of each type.
template <typename Byte>
constexpr float kLargest = std::is_same_v<Byte, int8_t> ? 127.0f : 448.0f;

__device__ __forceinline__ uint32_t PackFour(const float* v, int8_t) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(__float2int_rn(v[i])) & 0xff) << 8 * i;
  return word;
}
__device__ __forceinline__ uint32_t PackFour(const float* v, __nv_fp8_e4m3) { return E4m3Four(v); }

// fmaxf that returns NaN if a value is NaN.
__device__ __forceinline__ float MaxOrNan(float a, float b) { return a >= b || a != a ? a : b; }

template <typename X, typename Byte>
struct QuantizeArgs {
  const X* x;
  int64_t x_stride;
  int rows, k;
  const float *gamma, *beta;  // [k], or null
  float eps;
  Byte* q;
  float* scales;
};

// Returns the largest `most` of the warps of a CTA (NaN if one is NaN). `most` must not be negative
// and must be the same in all lanes of a warp.
__device__ __forceinline__ float LargestOfBlock(float most) {
  __shared__ float largest[32];
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
  most = 0.0f;
  for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) most = MaxOrNan(most, largest[i]);
  return most;
}

constexpr int kRowWarps = 8;  // rows of a CTA if a warp has a row

// Replaces a row x by (x - mean) / sqrt(mean((x - mean)^2) + eps) * gamma + beta, or for an RMSNorm
// (without beta) by x / sqrt(mean(x^2) + eps) * gamma. All threads of the row call it.
template <bool kBlockRow, typename X, typename Byte, int kPieces>
__device__ __forceinline__ void Normalize(const QuantizeArgs<X, Byte>& a, int thread, int threads,
                                          float (&values)[kPieces][kEach]) {
  __shared__ float sums[32];
  const auto for_each = [&](auto&& visit) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int at = (p * threads + thread) * kEach;
      if (at < a.k) visit(values[p], at);
    }
  };
  const auto mean_of = [&](float shift, bool square) {
    float sum = 0.0f;
    for_each([&](float(&v)[kEach], int) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float x = v[i] - shift;
        sum = square ? fmaf(x, x, sum) : sum + x;
      }
    });
    return (kBlockRow ? BlockSum(sum, sums) : WarpSum(sum)) / static_cast<float>(a.k);
  };
  const bool centre = a.beta != nullptr;
  const float mean = centre ? mean_of(0.0f, false) : 0.0f;
  const float scale = 1.0f / sqrtf(mean_of(mean, true) + a.eps);
  for_each([&](float(&v)[kEach], int at) {
    float gamma[kEach], beta[kEach] = {};
    LoadConsecutive(a.gamma + at, gamma);
    if (centre) LoadConsecutive(a.beta + at, beta);
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = fmaf((v[i] - mean) * scale, gamma[i], beta[i]);
  });
}

// Quantises rows: scales[r] = the largest magnitude in row r / kLargest, q = x / scales[r], rounded
// to nearest even, in the order of W (linear/byte_weights.cuh). A row with a NaN or an infinity
// gets a scale that makes its products NaN. With gamma, rows of f32 are normalised first
// (Normalize).
// Shapes: x [rows, k] bf16 or f32; gamma, beta [k]; q [rows, k] dense; scales [rows]. Rows of x,
// gamma and beta begin on 16-byte boundaries. k is a multiple of 16, and at most kPieces * kEach
// times the number of threads per row.
// Mapping: a row is computed by one warp or, with kBlockRow, by one CTA; a thread holds kPieces
// pieces of kEach values in registers.
// Bound: reading x and writing q, 3 bytes per value of bf16, 5 per value of f32.
// Tests: tests/kernels/linear/byte_gemm_test.cc.
template <typename X, typename Byte, int kPieces, bool kBlockRow>
__global__ void QuantizeKernel(QuantizeArgs<X, Byte> a) {
  WaitOnDependentGrids();
  const int threads = kBlockRow ? static_cast<int>(blockDim.x) : 32;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int64_t row = kBlockRow ? blockIdx.x : int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (row >= a.rows) return;
  const X* x = a.x + row * a.x_stride;
  float values[kPieces][kEach];
  float most = 0.0f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = (p * threads + thread) * kEach;
    if (at >= a.k) continue;
    LoadConsecutive(x + at, values[p]);
  }
  if constexpr (std::is_same_v<X, float>) {
    if (a.gamma != nullptr) Normalize<kBlockRow>(a, thread, threads, values);
  }
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = (p * threads + thread) * kEach;
    if (at >= a.k) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) most = MaxOrNan(most, fabsf(values[p][i]));
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    most = MaxOrNan(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  }
  if constexpr (kBlockRow) most = LargestOfBlock(most);
  const float inverse = most > 0.0f ? kLargest<Byte> / most : 0.0f;
  if (thread == 0) a.scales[row] = most / kLargest<Byte>;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int at = (p * threads + thread) * kEach;
    if (at >= a.k) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) values[p][i] *= inverse;
    Byte* const q = a.q + row * a.k;
    if (a.k % kByteGroup == 0) {
      // The piece is product at / 16 % 4 of a group of W's order (linear/byte_weights.cuh).
      auto* const to = reinterpret_cast<uint32_t*>(q + at / kByteGroup * kByteGroup);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float* const v = values[p] + 2 * t;
        const float four[4] = {v[0], v[8], v[1], v[9]};
        to[4 * t + at % kByteGroup / 16] = PackFour(four, Byte{});
      }
      continue;
    }
    uint4 words;
    words.x = PackFour(values[p], Byte{});
    words.y = PackFour(values[p] + 4, Byte{});
    words.z = PackFour(values[p] + 8, Byte{});
    words.w = PackFour(values[p] + 12, Byte{});
    *reinterpret_cast<uint4*>(q + at) = words;
  }
}

constexpr int kMostPieces = 4, kMostThreads = 1024;

// Quantises rows `x` of the call's x.
template <typename Byte, typename X>
void LaunchQuantize(const LinearArgs& args, const Tensor& x, void* q, float* scales,
                    CudaStream& stream) {
  const int rows = static_cast<int>(x.dim[0]), k = static_cast<int>(x.dim[1]);
  const QuantizeArgs<X, Byte> a{x.as<X>(),
                                x.stride[0],
                                rows,
                                k,
                                args.norm_gamma.as<float>(),
                                args.norm_beta.as<float>(),
                                args.norm_eps,
                                static_cast<Byte*>(q),
                                scales};
  const auto launch = [&](int blocks, int threads, auto kernel) {
    Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0,
           kernel, a);
  };
  const int vectors = k / kEach, blocks = (rows + kRowWarps - 1) / kRowWarps;
  const int pieces = (vectors + 31) / 32;  // of a thread, if a warp has a row
  if (pieces <= 1) return launch(blocks, kRowWarps * 32, QuantizeKernel<X, Byte, 1, false>);
  if (pieces <= 2) return launch(blocks, kRowWarps * 32, QuantizeKernel<X, Byte, 2, false>);
  if (pieces <= 4) return launch(blocks, kRowWarps * 32, QuantizeKernel<X, Byte, 4, false>);
  const bool many = vectors > 512;
  const int each = many ? kMostPieces : 1;
  launch(rows, (vectors + each * 32 - 1) / (each * 32) * 32,
         many ? QuantizeKernel<X, Byte, kMostPieces, true> : QuantizeKernel<X, Byte, 1, true>);
}

// ---- The GEMM ----

struct Scratch {
  void* q;        // [pieces of rows, k] 8-bit
  float* scales;  // [pieces of rows]
  int64_t bytes;
};

Scratch Carve(void* base, const WeightView& w, int64_t rows) {
  const int64_t piece = std::min(rows, kPieceRows);
  Carver carver(base);
  Scratch s;
  s.q = carver.Take(piece * w.k());
  s.scales = static_cast<float*>(carver.Take(piece * 4));
  s.bytes = carver.used_bytes();
  return s;
}

// Multiplies rows [begin, begin + q.dim[0]) of the call. q and scales hold these rows of x,
// quantised.
template <typename Byte, bool kFew>
void Multiply(const LinearArgs& args, int64_t begin, const Tensor& q, const float* scales,
              CudaStream& stream) {
  using Half = __nv_bfloat16;
  const WeightView& w = *args.w;
  PersistentArgs a{};
  a.rows = static_cast<int>(q.dim[0]);
  a.columns = static_cast<int>(w.gated() ? w.n() / 2 : w.n());
  a.k = static_cast<int>(w.k());
  a.activation = args.activation;
  a.alpha = args.alpha;
  a.x_scales = scales;
  a.w_scales = static_cast<const float*>(w.channels());
  if (args.scatter.base != nullptr) {
    a.y = args.scatter.base;
    a.row_offset = stream.DevicePtr(args.scatter.row_offset) + begin;
    a.chunk_offset = stream.DevicePtr(args.scatter.chunk_offset);
    a.chunk = static_cast<int>(args.scatter.chunk);
    a.y_is_e4m3 = args.scatter.dtype == DType::kF8;
    return LaunchPersistent<PersistentTile<Byte, Half, PersistentOutput::kScattered, kFew>>(a, q, w,
                                                                                            stream);
  }
  const Tensor y = args.y.Rows(begin, begin + q.dim[0]);
  a.y = y.data;
  a.y_stride = y.stride[0];
  if (w.gated()) {
    return LaunchPersistent<PersistentTile<Byte, Half, PersistentOutput::kGated, kFew>>(a, q, w,
                                                                                        stream);
  }
  a.bias = args.bias.dtype == DType::kF32 ? args.bias.as<float>() : nullptr;
  a.bf16_bias = args.bias.dtype == DType::kF32 ? nullptr : args.bias.as<Half>();
  if (args.residual.defined()) {
    a.residual = args.residual.as<float>() + begin * args.residual.stride[0];
    a.residual_stride = args.residual.stride[0];
  }
  const auto launch =
      y.dtype == DType::kF32
          ? LaunchPersistent<PersistentTile<Byte, float, PersistentOutput::kPlain, kFew>>
          : LaunchPersistent<PersistentTile<Byte, Half, PersistentOutput::kPlain, kFew>>;
  launch(a, q, w, stream);
}

template <typename Byte>
void Run(const LinearArgs& args, CudaStream& stream) {
  const WeightView& w = *args.w;
  const Scratch scratch = Carve(args.scratch.data, w, args.x.dim[0]);
  QT_CHECK_GE(args.scratch.elements(), scratch.bytes);
  for (int64_t begin = 0; begin < args.x.dim[0]; begin += kPieceRows) {
    const int64_t end = std::min(begin + kPieceRows, args.x.dim[0]);
    const auto quantize = args.x.dtype == DType::kF32 ? LaunchQuantize<Byte, float>
                                                      : LaunchQuantize<Byte, __nv_bfloat16>;
    quantize(args, args.x.Rows(begin, end), scratch.q, scratch.scales, stream);
    const Tensor q = Tensor::Dense(scratch.q, WeightDType(w.type()), {end - begin, w.k()});
    const auto multiply = end - begin <= kFewRows ? Multiply<Byte, true> : Multiply<Byte, false>;
    multiply(args, begin, q, scratch.scales, stream);
  }
}

bool IsAligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 8 == 0; }
bool AlignedPairs(const Tensor& t) { return IsAligned(t) && t.stride[0] % 2 == 0; }

// Whether the kernel supports the norm of x.
bool Normalizes(const LinearArgs& args) {
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  return !args.norm_gamma.defined() ||
         (args.x.dtype == DType::kF32 && aligned(args.norm_gamma) && aligned(args.norm_beta));
}

// Whether the kernel supports the epilogue and the output of this call.
bool Finishes(const LinearArgs& args) {
  const bool activated = args.activation != Activation::kNone;
  if (args.row_bias.defined() || args.kv.cache != nullptr || !IsAligned(args.bias)) return false;
  if (args.scatter.base != nullptr) {
    const bool stores = args.scatter.dtype == DType::kBF16 || args.scatter.dtype == DType::kF8;
    return stores && args.scatter.chunk % 8 == 0 && !args.w->gated() && !activated &&
           !args.bias.defined();
  }
  if (args.w->gated() && (args.bias.defined() || args.residual.defined())) return false;
  if (args.y.dtype == DType::kBF16) return Vectorizable(args.y) && !args.residual.defined();
  return !args.w->gated() && !activated && AlignedPairs(args.y) &&
         (!args.residual.defined() ||
          (args.residual.dtype == DType::kF32 && AlignedPairs(args.residual)));
}

}  // namespace

bool ByteGemmTakes(const LinearArgs& args, const CudaStream& stream) {
  const WeightView& w = *args.w;
  const int64_t columns = w.gated() ? w.n() / 2 : w.n();
  const bool known = args.x.dtype == DType::kF32 || args.x.dtype == DType::kBF16;
  return QuantizesInputs(w.type()) && known && stream.hopper() &&
         args.x.dim[0] >= kMinQuantizedInputRows && w.k() % kEach == 0 && columns % 8 == 0 &&
         w.k() <= int64_t{kEach} * kMostPieces * kMostThreads && Vectorizable(args.x) &&
         Normalizes(args) && Finishes(args);
}

int64_t ByteGemmScratchBytes(const WeightView& w, int64_t rows) {
  return QuantizesInputs(w.type()) ? Carve(nullptr, w, rows).bytes : 0;
}

void ByteGemm(const LinearArgs& args, CudaStream& stream) {
  args.w->type() == WeightType::kF8W8A8 ? Run<__nv_fp8_e4m3>(args, stream)
                                        : Run<int8_t>(args, stream);
}

}  // namespace quintet::cuda
