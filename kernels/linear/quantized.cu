// Int8 and fp8 weights, which stay one byte each in memory.
//
// Few rows: a kernel reads the bytes, converts them to bf16 in registers and uses tensor cores; the
// scale of each channel is applied in the epilogue. Many rows: linear/sliced.cu dequantises the
// weight to bf16 with the kernel below and multiplies x by the result. This moves five bytes per
// weight (one read, two written, two read by the GEMM), most of them within L2, which pays off only
// with many rows.
#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear/byte_weights.cuh"
#include "kernels/linear/gemm.cuh"
#include "kernels/ptx/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kChannels = 16;       // rows of W per CTA
constexpr int kStepK = kByteGroup;  // values of k in one step of a warp, 16 per thread
constexpr int kAhead = 4;           // steps whose weights are in flight
constexpr int64_t kMostRows = 32;

// Loads two consecutive values of x as a pair of bf16.
__device__ __forceinline__ uint32_t LoadPair(const __nv_bfloat16* x) {
  return *reinterpret_cast<const uint32_t*>(x);
}
__device__ __forceinline__ uint32_t LoadPair(const float* x) {
  const float2 v = *reinterpret_cast<const float2*>(x);
  return PackPair<__nv_bfloat16>(v.x, v.y);
}

template <typename X, typename Out>
struct ByteGemvArgs {
  const char* w;                                // [n, k] int8 or e4m3
  const float* scales;                          // [n]
  const X* x;                                   // [rows, k]
  const float* bias;                            // [n] f32, or null
  const Out* out_bias;                          // [n], or null
  const Out* residual;                          // [rows, columns], or null
  Out* y;                                       // [rows, columns]
  int64_t x_stride, residual_stride, y_stride;  // elements between rows
  int rows, n, k, columns;
  float alpha;
  Activation activation;
  bool gated;
};

// Gemv for few rows with weights of one byte each: y = activation(alpha * x D^T + bias) + residual,
// where D is W after each of its rows (channels) has been multiplied by its scale. With a gated
// weight, y = activation(gate) * up + residual, where gate and up are the two halves of alpha * x
// D^T + bias.
// Shapes: x [rows, k] bf16 or f32, W [n, k] int8 or e4m3, y [rows, columns] Out; k a multiple of
// 64; rows <= 8 kTiles.
// Accumulation: the bytes are exact in bf16. mma in f32: each warp sums its steps of k in ascending
// order, then the warps' sums are added in warp order, then the scale of the channel is applied.
// Mapping: a CTA computes 16 rows of W (gated: 8 gate rows and their 8 up rows); its warps split k
// in interleaved steps of 64 values. The 16 bytes that a thread loads from a row of W are operands
// of four mma (linear/byte_weights.cuh). The first weights are loaded before the kernel waits for
// its inputs.
// Bound: HBM, W is read once: n * k bytes at 4.3 TB/s on an H200.
// Tests: tests/kernels/linear/linear_test.cc.
template <bool kF8, typename X, typename Out, int kTiles>
__global__ void ByteGemvKernel(ByteGemvArgs<X, Out> a) {
  extern __shared__ float parts[];  // [warp][row][channel]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * (a.gated ? kChannels / 2 : kChannels);
  // A lane whose channel is past the end loads the last channel instead; its result is not written.
  const int64_t top = min(first + g, a.columns - 1);
  const int64_t bottom = a.gated ? top + a.columns : min(first + g + 8, a.n - 1);
  const char* w_top = a.w + top * a.k + 16 * t;
  const char* w_bottom = a.w + bottom * a.k + 16 * t;
  const int steps = a.k / kStepK;
  uint4 ahead[kAhead][2] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int step = warp + i * warps;
    if (step >= steps) break;
    ahead[i][0] = __ldg(reinterpret_cast<const uint4*>(w_top + step * kStepK));
    ahead[i][1] = __ldg(reinterpret_cast<const uint4*>(w_bottom + step * kStepK));
  }
  WaitOnDependentGrids();

  float sums[kTiles][4] = {};
  for (int base = warp; base < steps; base += warps * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = base + i * warps;
      if (step >= steps) break;
      const uint4 p = ahead[i][0], q = ahead[i][1];
      const int next = step + kAhead * warps;
      if (next < steps) {
        ahead[i][0] = __ldg(reinterpret_cast<const uint4*>(w_top + next * kStepK));
        ahead[i][1] = __ldg(reinterpret_cast<const uint4*>(w_bottom + next * kStepK));
      }
      const uint32_t p_words[4] = {p.x, p.y, p.z, p.w}, q_words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int r = tile * 8 + g;
        const X* const x = a.x + r * a.x_stride + step * kStepK + 2 * t;
        uint32_t b[4][2] = {};
#pragma unroll
        for (int j = 0; j < 4 && r < a.rows; ++j) {
          b[j][0] = LoadPair(x + 16 * j);
          b[j][1] = LoadPair(x + 16 * j + 8);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Mma<__nv_bfloat16>(sums[tile], EvenPair<kF8>(p_words[j]), EvenPair<kF8>(q_words[j]),
                             OddPair<kF8>(p_words[j]), OddPair<kF8>(q_words[j]), b[j][0], b[j][1]);
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = tile * 8 + 2 * t + i % 2, c = g + i / 2 * 8;
      parts[(warp * kTiles * 8 + r) * (kChannels + 1) + c] = sums[tile][i];
    }
  }
  __syncthreads();
  const int channels = a.gated ? kChannels / 2 : kChannels;
  for (int i = static_cast<int>(threadIdx.x); i < a.rows * channels;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / channels, c = i % channels, column = first + c;
    if (column >= a.columns) continue;
    const auto value = [&](int part, int64_t channel) {
      float sum = 0.0f;
      for (int from = 0; from < warps; ++from) {
        sum += parts[(from * kTiles * 8 + r) * (kChannels + 1) + part];
      }
      sum *= a.alpha * a.scales[channel];
      if (a.bias != nullptr) sum += a.bias[channel];
      if (a.out_bias != nullptr) sum += ToF32(a.out_bias[channel]);
      return sum;
    };
    float v = Activated(a.activation, value(c, column));
    if (a.gated) v *= value(c + 8, column + a.columns);
    if (a.residual != nullptr) v += ToF32(a.residual[r * a.residual_stride + column]);
    a.y[r * a.y_stride + column] = FromF32<Out>(v);
  }
}

template <bool kF8, typename X, typename Out>
void LaunchByteGemv(const LinearArgs& args, CudaStream& stream) {
  ByteGemvArgs<X, Out> a{};
  a.w = static_cast<const char*>(args.w->panels());
  a.scales = static_cast<const float*>(args.w->channels());
  a.x = args.x.as<X>();
  if (args.bias.dtype == DType::kF32) {
    a.bias = args.bias.as<float>();
  } else {
    a.out_bias = args.bias.as<Out>();
  }
  a.residual = args.residual.as<Out>();
  a.y = args.y.as<Out>();
  a.x_stride = args.x.stride[0];
  a.residual_stride = args.residual.stride[0];
  a.y_stride = args.y.stride[0];
  a.gated = args.w->gated();
  a.rows = static_cast<int>(args.x.dim[0]);
  a.n = static_cast<int>(args.w->n());
  a.k = static_cast<int>(args.w->k());
  a.columns = a.gated ? a.n / 2 : a.n;
  a.alpha = args.alpha;
  a.activation = args.activation;
  const int tiles = a.rows <= 8 ? 1 : a.rows <= 16 ? 2 : 4;
  const int channels = a.gated ? kChannels / 2 : kChannels;
  const int blocks = (a.columns + channels - 1) / channels;
  // With few CTAs, a CTA has one warp per step of k where possible, so that all weights of the CTA
  // are in flight at once. With many CTAs, several small ones keep an SM busier than one large one.
  const bool many = blocks > 4 * stream.num_sms();
  const int steps = a.k / kStepK, most_warps = tiles == 4 ? 8 : 16;
  const int warps = std::clamp(many ? steps / kAhead : steps, 1, most_warps);
  const size_t shared = static_cast<size_t>(warps) * tiles * 8 * (kChannels + 1) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(blocks));
  const auto kernel = tiles == 1   ? ByteGemvKernel<kF8, X, Out, 1>
                      : tiles == 2 ? ByteGemvKernel<kF8, X, Out, 2>
                                   : ByteGemvKernel<kF8, X, Out, 4>;
  Launch(stream, grid, dim3(static_cast<unsigned>(warps * 32)), shared, kernel, a);
}

bool IsFewRows(const LinearArgs& args) {
  return args.scatter.base == nullptr && !args.row_bias.defined() && args.x.dim[0] <= kMostRows &&
         args.w->k() % kStepK == 0 && Vectorizable(args.x);
}

// Returns two bf16 values times a scale, rounded once.
__device__ __forceinline__ uint32_t Scaled(uint32_t pair, float scale) {
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  return PackPair<__nv_bfloat16>(v.x * scale, v.y * scale);
}

// out = W * scales in bf16, for a range of channels; rounded once.
// Shapes: w [channels, k] bytes, scales [channels], out [channels, k]; k a multiple of kByteGroup.
// Mapping: a thread converts the 16 values of one product of a group (linear/byte_weights.cuh).
// Bound: 3 bytes per value.
// Tests: tests/kernels/linear/linear_test.cc.
template <bool kF8>
__global__ void DequantizeKernel(const char* w, const float* scales, int64_t products,
                                 int64_t row_products, __nv_bfloat16* out) {
  constexpr int kProducts = kByteGroup / 16;
  WaitOnDependentGrids();
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= products) return;
  const float scale = scales[i / row_products];
  const int product = static_cast<int>(i % kProducts);
  const auto* const group = reinterpret_cast<const uint32_t*>(w) + i / kProducts * kByteGroup / 4;
  uint32_t low[4], high[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t word = __ldg(group + 4 * t + product);
    low[t] = Scaled(EvenPair<kF8>(word), scale);
    high[t] = Scaled(OddPair<kF8>(word), scale);
  }
  uint4* to = reinterpret_cast<uint4*>(out) + 2 * i;
  to[0] = *reinterpret_cast<const uint4*>(low);
  to[1] = *reinterpret_cast<const uint4*>(high);
}

// DequantizeKernel for other k: a thread converts one value.
template <bool kF8>
__global__ void DequantizeAnyKernel(const char* w, const float* scales, int64_t values, int64_t k,
                                    __nv_bfloat16* out) {
  WaitOnDependentGrids();
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= values) return;
  const uint32_t pair = EvenPair<kF8>(static_cast<unsigned char>(w[i]));
  const float v = __bfloat162float(reinterpret_cast<const __nv_bfloat162*>(&pair)->x);
  out[i] = __float2bfloat16_rn(v * scales[i / k]);
}

template <bool kF8>
void LaunchDequantize(const WeightView& w, int64_t begin, int64_t end, void* to,
                      CudaStream& stream) {
  constexpr int kThreads = 256;
  const int64_t k = w.k();
  const char* from = static_cast<const char*>(w.panels()) + begin * k;
  const float* scales = static_cast<const float*>(w.channels()) + begin;
  auto* out = static_cast<__nv_bfloat16*>(to);
  const bool groups = k % kByteGroup == 0;
  const int64_t threads = (end - begin) * k / (groups ? 16 : 1);
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  if (groups) {
    Launch(stream, grid, dim3(kThreads), 0, DequantizeKernel<kF8>, from, scales, threads, k / 16,
           out);
  } else {
    Launch(stream, grid, dim3(kThreads), 0, DequantizeAnyKernel<kF8>, from, scales, threads, k,
           out);
  }
}

}  // namespace

bool RunByteGemv(const LinearArgs& args, CudaStream& stream) {
  if (!IsFewRows(args)) return false;
  const auto of_types = [&](auto f8, auto x) {
    using X = typename decltype(x)::type;
    if (args.y.dtype == DType::kF32) {
      return LaunchByteGemv<decltype(f8)::value, X, float>(args, stream);
    }
    QT_CHECK(args.y.dtype == DType::kBF16);
    LaunchByteGemv<decltype(f8)::value, X, __nv_bfloat16>(args, stream);
  };
  const auto of_format = [&](auto f8) {
    if (args.x.dtype == DType::kF32) return of_types(f8, TypeTag<float>());
    QT_CHECK(args.x.dtype == DType::kBF16);
    of_types(f8, TypeTag<__nv_bfloat16>());
  };
  if (WeightDType(args.w->type()) == DType::kF8) {
    of_format(std::true_type());
  } else {
    of_format(std::false_type());
  }
  return true;
}

void Dequantize(const WeightView& w, int64_t begin, int64_t end, void* to, CudaStream& stream) {
  WeightDType(w.type()) == DType::kF8 ? LaunchDequantize<true>(w, begin, end, to, stream)
                                      : LaunchDequantize<false>(w, begin, end, to, stream);
}

}  // namespace quintet::cuda
