#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear_product.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kChannels = 16;  // rows of W that a block owns
constexpr int kStepK = 32;     // values of k that a warp takes at once
constexpr int kAhead = 4;      // steps whose weights are on their way at once
constexpr int kPad = 32;       // values between staged rows of x: 16-byte reads meet no bank twice
constexpr int64_t kMostRows = 32, kMostNormRows = 16;
constexpr int64_t kMostStagedBytes = int64_t{160} << 10;

template <typename T, typename Out>
struct FewArgs {
  const T* w;  // [n, k]
  const T* x;  // [rows, k], or null: staged from x_f32
  const float* x_f32;
  const float* gamma;  // norm, or null
  const float* beta;   // centred norm, or null
  const float* bias;
  const Out* out_bias;
  const Out* residual;
  Out* y;
  int64_t x_stride, residual_stride, y_stride;
  int64_t second;  // rows of W from a fragment's first eight channels to its other eight
  int rows, n, k, columns;
  float alpha, eps;
  Activation activation;
  bool gated;
};

// Sum over the `warps` neighbouring warps of a row, in their order; `parts` [32] is free again
// after the next barrier. Every thread of the block calls it.
__device__ __forceinline__ float RowSum(float x, int warps, float* parts) {
  x = WarpSum(x);
  if (warps == 1) return x;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) parts[warp] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = warp / warps * warps, n = 0; n < warps; ++n) sum += parts[i + n];
  __syncthreads();
  return sum;
}

// Rows of x, normalised where there is a gamma, as T to shared memory. As many warps share a row as
// a power of two allows; a row's sums depend on that number, which depends on the rows.
template <typename T, typename Out>
__device__ __forceinline__ void StageRows(const FewArgs<T, Out>& a, T* staged) {
  __shared__ float parts[32];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  int together = warps;  // warps of a row
  while (together > 1 && a.rows * together > warps) together /= 2;
  const int at_once = warps / together, step = together * 128;
  const int begin = (warp % together * 32 + static_cast<int>(threadIdx.x) % 32) * 4;
  for (int base = 0; base < a.rows; base += at_once) {
    const int r = base + warp / together;
    const bool there = r < a.rows;
    const float* x = a.x_f32 + r * a.x_stride;
    float mean = 0.0f, scale = 1.0f;
    if (a.gamma != nullptr) {
      if (a.beta != nullptr) {
        float sum = 0.0f;
        for (int i = begin; there && i < a.k; i += step) {
          const float4 v = *reinterpret_cast<const float4*>(x + i);
          sum += (v.x + v.y) + (v.z + v.w);
        }
        mean = RowSum(sum, together, parts) / static_cast<float>(a.k);
      }
      float square = 0.0f;
      for (int i = begin; there && i < a.k; i += step) {
        const float4 v = *reinterpret_cast<const float4*>(x + i);
        const float p = v.x - mean, q = v.y - mean, s = v.z - mean, t = v.w - mean;
        square += (p * p + q * q) + (s * s + t * t);
      }
      scale = 1.0f / sqrtf(RowSum(square, together, parts) / static_cast<float>(a.k) + a.eps);
    }
    for (int i = begin; there && i < a.k; i += step) {
      const float4 v = *reinterpret_cast<const float4*>(x + i);
      float out[4] = {v.x, v.y, v.z, v.w};
      if (a.gamma != nullptr) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          out[j] = (out[j] - mean) * scale * a.gamma[i + j];
          if (a.beta != nullptr) out[j] += a.beta[i + j];
        }
      }
      uint2 packed = {PackPair<T>(out[0], out[1]), PackPair<T>(out[2], out[3])};
      *reinterpret_cast<uint2*>(staged + r * (a.k + kPad) + i) = packed;
    }
  }
}

// What: y = activation(alpha * norm(x) W^T + bias) [* up] + residual, of few rows.
// Shapes: x [rows, k] T or f32, W [n, k] T, y [rows, columns] Out; k a multiple of 32; rows <= 8
// kTiles.
// Math: products on tensor cores, f32 sums: each warp's share of k in ascending order, then the
// warps' in theirs; the norm's sums depend on how many rows there are.
// Map: a block owns 16 rows of W (gated: 8 gate rows and the 8 up rows that belong to them); its
// warps take turns along k, 32 values at a time. W goes from memory to registers in 16-byte
// pieces: the fragments' k are permuted, alike for W and x, so that a thread's four pairs are
// neighbours in memory. The first weights are asked for before the kernel waits for its inputs.
// Bound: W read once: n * k * 2 bytes over 4.3 TB/s on an H200.
// Spec: tests/kernels/linear_test.cc.
template <typename T, typename Out, int kTiles>
__global__ void FewRowsKernel(FewArgs<T, Out> a) {
  extern __shared__ __align__(16) char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * (a.gated ? kChannels / 2 : kChannels);
  // Channels past the end read the last one; nobody writes them.
  const int64_t top = min(first + g, a.columns - 1);
  const int64_t bottom = a.gated ? top + a.second : min(first + g + 8, a.n - 1);
  const T* w_top = a.w + top * a.k + 8 * t;
  const T* w_bottom = a.w + bottom * a.k + 8 * t;
  const int steps = a.k / kStepK;
  uint4 ahead[kAhead][2];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int step = min(warp + i * warps, steps - 1) * kStepK;
    ahead[i][0] = __ldg(reinterpret_cast<const uint4*>(w_top + step));
    ahead[i][1] = __ldg(reinterpret_cast<const uint4*>(w_bottom + step));
  }
  WaitForInputs();

  const T* x = a.x;
  int64_t x_stride = a.x_stride;
  if (x == nullptr) {
    T* staged = reinterpret_cast<T*>(shared);
    StageRows(a, staged);
    __syncthreads();
    x = staged;
    x_stride = a.k + kPad;
  }
  float sums[kTiles][4] = {};
  for (int base = warp; base < steps; base += warps * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = base + i * warps;
      if (step >= steps) break;
      const uint4 p = ahead[i][0], q = ahead[i][1];
      const int next = min(step + kAhead * warps, steps - 1) * kStepK;
      ahead[i][0] = __ldg(reinterpret_cast<const uint4*>(w_top + next));
      ahead[i][1] = __ldg(reinterpret_cast<const uint4*>(w_bottom + next));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int r = tile * 8 + g;
        uint4 b = {0, 0, 0, 0};
        if (r < a.rows) {
          b = *reinterpret_cast<const uint4*>(x + r * x_stride + step * kStepK + 8 * t);
        }
        Mma<T>(sums[tile], p.x, q.x, p.y, q.y, b.x, b.y);
        Mma<T>(sums[tile], p.z, q.z, p.w, q.w, b.z, b.w);
      }
    }
  }
  // The warps' parts, [warp][row][channel].
  if (a.x == nullptr) __syncthreads();
  float* parts = reinterpret_cast<float*>(shared);
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
      sum *= a.alpha;
      if (a.bias != nullptr) sum += a.bias[channel];
      if (a.out_bias != nullptr) sum += ToF32(a.out_bias[channel]);
      return sum;
    };
    float v = Activated(a.activation, value(c, column));
    if (a.gated) v *= value(c + 8, column + a.second);
    if (a.residual != nullptr) v += ToF32(a.residual[r * a.residual_stride + column]);
    a.y[r * a.y_stride + column] = FromF32<Out>(v);
  }
}

// Few enough rows, and k and addresses made for 16-byte pieces.
bool Fits(const Product& p) {
  if (p.w == nullptr || p.w->type() == WeightType::kF32) return false;
  const int64_t rows = p.x.dim[0];
  if (rows > (p.norm_gamma.defined() ? kMostNormRows : kMostRows)) return false;
  // A wide head would read many rows of x again in each of its blocks.
  if (rows > 8 && p.w->n() > 16384) return false;
  return p.w->k() % kStepK == 0 && Vectorizable(p.x) &&
         (p.x.dtype != DType::kF32 || rows * (p.w->k() + kPad) * 2 <= kMostStagedBytes);
}

template <typename T, typename Out>
void LaunchFewRows(const Product& p, Stream& stream) {
  FewArgs<T, Out> a{};
  a.w = static_cast<const T*>(p.w->panels());
  if (p.x.dtype == DType::kF32) {
    a.x_f32 = p.x.as<float>();
    a.gamma = p.norm_gamma.as<float>();
    a.beta = p.norm_beta.as<float>();
  } else {
    a.x = p.x.as<T>();
  }
  if (p.bias.dtype == DType::kF32) {
    a.bias = p.bias.as<float>();
  } else {
    a.out_bias = p.bias.as<Out>();
  }
  a.residual = p.residual.as<Out>();
  a.y = p.y.as<Out>();
  a.x_stride = p.x.stride[0];
  a.residual_stride = p.residual.stride[0];
  a.y_stride = p.y.stride[0];
  a.gated = p.w->gated();
  a.rows = static_cast<int>(p.x.dim[0]);
  a.n = static_cast<int>(p.w->n());
  a.k = static_cast<int>(p.w->k());
  a.columns = a.gated ? a.n / 2 : a.n;
  a.second = a.columns;
  a.alpha = p.alpha;
  a.eps = p.norm_eps;
  a.activation = p.activation;
  const int tiles = a.rows <= 8 ? 1 : a.rows <= 16 ? 2 : 4;
  const int warps = a.k >= 1536 ? 16 : 8;
  const size_t staged =
      a.x == nullptr ? static_cast<size_t>(a.rows) * (a.k + kPad) * sizeof(T) : size_t{0};
  const size_t parts = static_cast<size_t>(warps) * tiles * 8 * (kChannels + 1) * sizeof(float);
  const size_t shared = std::max(staged, parts);
  const int channels = a.gated ? kChannels / 2 : kChannels;
  const dim3 grid(static_cast<unsigned>((a.columns + channels - 1) / channels));
  const auto kernel = tiles == 1   ? FewRowsKernel<T, Out, 1>
                      : tiles == 2 ? FewRowsKernel<T, Out, 2>
                                   : FewRowsKernel<T, Out, 4>;
  if (shared > (48u << 10)) {
    QT_CUDA(stream.device(), cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(shared)));
  }
  Launch(stream, grid, dim3(static_cast<unsigned>(warps * 32)), shared, kernel, a);
}

}  // namespace

bool RunFewRows(const Product& p, Stream& stream) {
  if (!Fits(p)) return false;
  const auto launch = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (p.y.dtype == DType::kF32) {
      LaunchFewRows<T, float>(p, stream);
    } else {
      QT_CHECK(p.y.dtype == (p.w->type() == WeightType::kBF16 ? DType::kBF16 : DType::kF16));
      LaunchFewRows<T, T>(p, stream);
    }
  };
  if (p.w->type() == WeightType::kBF16) {
    launch(TypeTag<__nv_bfloat16>());
  } else {
    launch(TypeTag<__half>());
  }
  return true;
}

bool LinearTakesNorm(const LinearWeight& w, int64_t rows) {
  return w.type() != WeightType::kF32 && rows <= kMostNormRows && w.k() % kStepK == 0 &&
         w.n() <= 16384 && rows * (w.k() + kPad) * 2 <= kMostStagedBytes;
}

}  // namespace quintet::cuda
