#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear_product.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kStepK = 32;  // values of k that a warp takes at once
constexpr int kMostWarps = 16;
constexpr int kPad = 32;  // values between staged rows of x: 16-byte reads meet no bank twice
constexpr int64_t kMostRows = 32;
// Every block normalises all rows again: from the second row on a kernel for it costs less.
constexpr int64_t kMostNormRows = 1;
// Larger weights are read as fast by cuBLASLt, which reads x less often; wide ones faster.
constexpr int64_t kLargeWeight = int64_t{8} << 20, kMostRowsOfLarge = 8, kMostColumns = 4096;
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
  int staged_bytes;  // of shared memory
  float alpha, eps;
  Activation activation;
  bool gated;
  // Keys and values to their slots (KvOutput), or null.
  Out* cache;
  const int32_t* slots;
  int64_t page_elements, key_offset, value_offset;
  int inner, head_dim, page_size;
};

// Where a key or value of a row goes; null: nowhere.
template <typename T, typename Out>
__device__ __forceinline__ Out* CachePlace(const FewArgs<T, Out>& a, int row, int column) {
  const int slot = a.slots[row];
  if (slot < 0) return nullptr;
  const bool value = column >= 2 * a.inner;
  const int within = column - (value ? 2 : 1) * a.inner;
  const int head = within / a.head_dim, channel = within % a.head_dim;
  return a.cache + slot / a.page_size * a.page_elements + (value ? a.value_offset : a.key_offset) +
         (head * a.page_size + slot % a.page_size) * a.head_dim + channel;
}

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

// Rows of x, normalised where there is a gamma, as T to shared memory. Several warps share a row
// where there are more of them; a row's sums depend on that number, which depends on the rows.
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
    const bool there = warp / together < at_once && r < a.rows;
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

// What: y = activation(alpha * norm(x) W^T + bias) [* up] + residual, of few rows; or keys and
// values to their slots. Shapes: x [rows, k] T or f32, W [n, k] T, y [rows, columns] Out; k a
// multiple of 32; rows <= 8 kTiles. Math: products on tensor cores, f32 sums: each warp's share of
// k in ascending order, then the warps' in theirs; the norm's sums depend on how many rows there
// are. Map: a block takes tiles of kChannels rows of W in turns (gated: 8 gate rows and the 8 up
// rows that belong to them); its warps take turns along k, 32 values at a time. W goes from memory
// to registers in 16-byte pieces: the fragments' k are permuted, alike for W and x, so that a
// thread's four pairs are neighbours in memory. kAhead steps of a warp are on their way at once,
// across tiles too; the first ones are asked for before the kernel waits for its inputs.
// Bound: W read once: n * k * 2 bytes over 4.3 TB/s on an H200; in a step the chain of kernels,
// about 2 us each. Versions, us of a recorded step of T5-base (bench_steps_gpu), 1 | 8 | 32 rows:
// 1, as here with 16 channels a tile, StoreKv after it, the head too, other kernels let the next
// one begin after their wait: 471 | 570 | 658. 2, 8 channels and 6 or 12 warps a block, x staged in
// every one, the next kernel let in at the first instruction: predicted 275, got 427 | 616 | 714:
// more blocks normalise x again, each with fewer warps, and the next kernel's weights are in the
// way of this one's x. 3, 16 channels and 8 or 16 warps again, wide weights left to cuBLASLt: 391 |
// 484 | 579. 4, and the next kernel let in after the wait: 355 | 463 | 567. With 8 channels where x
// is read as it is and tiles are few, as here: version 3 went from 391 to 343 at one row by it.
// Spec: tests/kernels/linear_test.cc.
template <typename T, typename Out, int kTiles, int kChannels, int kAhead>
__global__ void __launch_bounds__(kMostWarps * 32) FewRowsKernel(FewArgs<T, Out> a) {
  extern __shared__ __align__(16) char shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int g = lane / 4, t = lane % 4;
  const int channels = a.gated ? kChannels / 2 : kChannels;  // of y in a tile
  const int tiles = (a.columns + channels - 1) / channels;
  const int steps = a.k / kStepK;
  const int mine = (steps - warp + warps - 1) / warps;  // steps of this warp in a tile
  const int rounds = (mine + kAhead - 1) / kAhead;

  // Where the loads are: they run ahead of the sums. Channels past the end read the last one;
  // nobody writes them.
  int load_tile = static_cast<int>(blockIdx.x), load_round = 0;
  const T *w_top = nullptr, *w_bottom = nullptr;
  const auto point = [&] {
    const int first = min(load_tile, tiles - 1) * channels;
    const int64_t top = min(first + g, a.columns - 1);
    const int64_t bottom = a.gated ? top + a.second : min(first + g + 8, a.n - 1);
    w_top = a.w + top * a.k + 8 * t;
    w_bottom = a.w + bottom * a.k + 8 * t;
  };
  uint4 ahead[kAhead][kChannels / 8];
  const auto load = [&](int i) {
    const int step = warp + (load_round * kAhead + i) * warps;
    if (load_tile >= tiles || step >= steps) return;
    ahead[i][0] = __ldg(reinterpret_cast<const uint4*>(w_top + step * kStepK));
    if constexpr (kChannels == 16) {
      ahead[i][1] = __ldg(reinterpret_cast<const uint4*>(w_bottom + step * kStepK));
    }
  };
  const auto next_round = [&] {
    if (++load_round < rounds) return;
    load_round = 0;
    load_tile += static_cast<int>(gridDim.x);
    point();
  };
  point();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i);
  next_round();
  WaitForInputs();

  const T* x = a.x;
  int64_t x_stride = a.x_stride;
  char* free_shared = shared;
  if (x == nullptr) {
    T* staged = reinterpret_cast<T*>(shared);
    StageRows(a, staged);
    __syncthreads();
    x = staged;
    x_stride = a.k + kPad;
    free_shared += a.staged_bytes;
  }
  float* parts = reinterpret_cast<float*>(free_shared);  // the warps' sums, [warp][row][channel]
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    float sums[kTiles][4] = {};
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int step = warp + (round * kAhead + i) * warps;
        if (step < steps) {
          const uint4 p = ahead[i][0];
          const uint4 q = kChannels == 16 ? ahead[i][kChannels / 8 - 1] : uint4{0, 0, 0, 0};
          load(i);
#pragma unroll
          for (int rows = 0; rows < kTiles; ++rows) {
            const int r = rows * 8 + g;
            uint4 b = {0, 0, 0, 0};
            if (r < a.rows) {
              b = *reinterpret_cast<const uint4*>(x + r * x_stride + step * kStepK + 8 * t);
            }
            Mma<T>(sums[rows], p.x, q.x, p.y, q.y, b.x, b.y);
            Mma<T>(sums[rows], p.z, q.z, p.w, q.w, b.z, b.w);
          }
        } else {
          load(i);
        }
      }
      next_round();
    }
#pragma unroll
    for (int rows = 0; rows < kTiles; ++rows) {
#pragma unroll
      for (int i = 0; i < kChannels / 4; ++i) {
        const int r = rows * 8 + 2 * t + i % 2, c = g + i / 2 * 8;
        parts[(warp * kTiles * 8 + r) * (kChannels + 1) + c] = sums[rows][i];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.rows * channels;
         i += static_cast<int>(blockDim.x)) {
      const int r = i / channels, c = i % channels, column = tile * channels + c;
      if (column >= a.columns) continue;
      const float residual =
          a.residual != nullptr ? ToF32(a.residual[r * a.residual_stride + column]) : 0.0f;
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
      Out* y = a.cache != nullptr && column >= a.inner ? CachePlace(a, r, column)
                                                       : a.y + r * a.y_stride + column;
      if (y != nullptr) *y = FromF32<Out>(v + residual);
    }
    __syncthreads();  // the next tile's sums go to the same place
  }
}

// Few enough rows, and k and addresses made for 16-byte pieces.
bool Fits(const Product& p) {
  if (p.w == nullptr || !IsHalf(p.w->type())) return false;
  const int64_t rows = p.x.dim[0];
  if (rows > (p.norm_gamma.defined() ? kMostNormRows : kMostRows)) return false;
  if (p.w->n() > kMostColumns) return false;
  if (p.w->n() * p.w->k() > kLargeWeight && rows > kMostRowsOfLarge) return false;
  return p.w->k() % kStepK == 0 && Vectorizable(p.x) &&
         (p.x.dtype != DType::kF32 || rows * (p.w->k() + kPad) * 2 <= kMostStagedBytes);
}

template <typename T, typename Out, int kTiles, int kChannels, int kAhead>
void LaunchKernel(FewArgs<T, Out> a, int units, Stream& stream) {
  const auto kernel = FewRowsKernel<T, Out, kTiles, kChannels, kAhead>;
  const int warps = a.k >= 1536 ? 16 : 8;
  a.staged_bytes = a.x == nullptr ? a.rows * (a.k + kPad) * static_cast<int>(sizeof(T)) : 0;
  const int parts = warps * kTiles * 8 * (kChannels + 1) * static_cast<int>(sizeof(float));
  const int shared = a.staged_bytes + parts;
  if (shared > (48 << 10)) {
    QT_CUDA(stream.device(),
            cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  }
  const int channels = a.gated ? kChannels / 2 : kChannels;
  const int tiles = (a.columns + channels - 1) / channels;
  // As many blocks as are there at once, each with the same number of tiles but the last.
  constexpr int kWarpsAtOnce = 20;  // of a multiprocessor, for want of registers
  const int at_once = units * std::max(1, kWarpsAtOnce / warps);
  const int turns = (tiles + at_once - 1) / at_once;
  const int blocks = (tiles + turns - 1) / turns;
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * 32)),
         static_cast<size_t>(shared), kernel, a);
}

template <typename T, typename Out, int kTiles>
void LaunchTiles(const FewArgs<T, Out>& a, bool narrow, int units, Stream& stream) {
  if (narrow) return LaunchKernel<T, Out, kTiles, 8, 8>(a, units, stream);
  LaunchKernel<T, Out, kTiles, 16, 4>(a, units, stream);
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
  if (p.kv.cache != nullptr) {
    const KvCache& cache = *p.kv.cache;
    a.cache = cache.as<Out>();
    a.slots = stream.Twin(p.kv.slots.data());
    a.page_elements = cache.page_elements();
    a.key_offset = cache.ChunkOffset(p.kv.layer, false, 0);
    a.value_offset = cache.ChunkOffset(p.kv.layer, true, 0);
    a.inner = static_cast<int>(cache.heads * cache.head_dim);
    a.head_dim = static_cast<int>(cache.head_dim);
    a.page_size = static_cast<int>(cache.page_size);
  }
  const int units = stream.device().multiprocessors();
  // Few tiles of an x that is read as it is: tiles of eight channels spread the reading of W.
  const bool narrow = !a.gated && a.x != nullptr && a.rows <= 8 && a.columns < 16 * units;
  if (a.rows <= 8) return LaunchTiles<T, Out, 1>(a, narrow, units, stream);
  if (a.rows <= 16) return LaunchTiles<T, Out, 2>(a, narrow, units, stream);
  LaunchTiles<T, Out, 4>(a, narrow, units, stream);
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
  return LinearStoresKv(w, rows) && rows <= kMostNormRows &&
         rows * (w.k() + kPad) * 2 <= kMostStagedBytes;
}

bool LinearStoresKv(const LinearWeight& w, int64_t rows) {
  return IsHalf(w.type()) && w.n() <= kMostColumns && w.k() % kStepK == 0 &&
         rows <= (w.n() * w.k() > kLargeWeight ? kMostRowsOfLarge : kMostRows);
}

}  // namespace quintet::cuda
