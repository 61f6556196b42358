#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/cuda.cuh"

// LoRA corrections on the GPU. FusedKernel computes them if the rows are few or the factors are f32
// (UsesTiles). Otherwise two kernels use tensor cores: ShrinkTiles computes t = norm(x) a^T, [rows,
// parts * max_rank] f32 in scratch memory, and ExpandTiles adds t b to the outputs.

namespace quintet::cuda {
namespace {

constexpr int kRankMultiple = static_cast<int>(kLoraRankMultiple);
constexpr int kFusedThreads = 256;
constexpr int kChunk = 8192;         // values of a row of x in shared memory
constexpr int kSliceColumns = 1024;  // maximum columns of a CTA of FusedKernel

// Of the kernels that use tensor cores.
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTileRows = 16;     // rows of a warp
constexpr int64_t kFewRows = 64;  // fewer rows than this use FusedKernel

template <typename X>
struct ShrinkParams {
  const X* x;
  int64_t x_stride;
  const float* gamma;  // or null
  const float* beta;   // or null
  float eps;
  const LoraPart* table;
  int64_t stride;
  const int32_t* adapters;
  float* t;
  int rows, k, parts, max_rank;
};

// The addresses of the outputs of an AddLora call.
template <typename Y>
struct LoraOutputs {
  Y* y;
  int64_t y_stride;
  const int64_t* row_offset;    // scatter, or null
  const int64_t* chunk_offset;  // scatter
  int chunk;                    // scatter
  const int32_t* slots;         // cache of keys and values, or null
  Y* cache;
  int64_t page_elements, layer_offset;
  int page_size, inner, head_dim;  // inner: heads * head_dim

  // Address of column c of a row; null: not stored.
  __device__ Y* At(int row, int c) const {
    if (row_offset != nullptr) {
      return y + row_offset[row] + chunk_offset[c / chunk] + c % chunk;
    }
    if (slots == nullptr || c < inner) return y + row * y_stride + c;
    const int slot = slots[row];
    if (slot < 0) return nullptr;
    const int64_t head = (c - inner) / head_dim;  // of the keys, then of the values
    return cache + slot / page_size * page_elements + slot % page_size * int64_t{head_dim} +
           layer_offset + head * page_size * head_dim + c % head_dim;
  }
};

template <typename Y>
struct ExpandParams {
  const float* t;
  const LoraPart* table;
  int64_t stride;
  const int32_t* adapters;
  LoraOutputs<Y> out;
  int rows, parts, part_columns, max_rank;
  bool overwrite;
};

// The norm of a row as value = (x - mean) * scale * gamma + beta.
struct RowNorm {
  float mean = 0.0f, scale = 1.0f;
};

template <typename X>
__device__ float Normed(const ShrinkParams<X>& a, const RowNorm& norm, float x, int c) {
  if (a.gamma == nullptr) return x;
  const float y = (x - norm.mean) * norm.scale * a.gamma[c];
  return a.beta == nullptr ? y : y + a.beta[c];
}

// Computed by a warp.
template <typename X>
__device__ RowNorm NormOfRow(const ShrinkParams<X>& a, const X* x) {
  RowNorm norm;
  if (a.gamma == nullptr) return norm;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float inverse = 1.0f / static_cast<float>(a.k);
  if (a.beta != nullptr) {
    float sum = 0.0f;
    for (int c = lane; c < a.k; c += 32) sum += ToF32(x[c]);
    norm.mean = WarpSum(sum) * inverse;
  }
  float squares = 0.0f;
  for (int c = lane; c < a.k; c += 32) {
    const float v = ToF32(x[c]) - norm.mean;
    squares += v * v;
  }
  norm.scale = rsqrtf(WarpSum(squares) * inverse + a.eps);
  return norm;
}

// Outputs += norm(x) a^T b, for few rows, in one kernel.
// Shapes: x [rows, k], any row stride; outputs [rows, parts * part_columns], see LoraOutputs.
// Mapping: blockIdx.x is the row, blockIdx.y a slice of the columns of one part of the outputs. The
// CTA puts kChunk values of norm(x) at a time into shared memory; its warps compute the elements of
// norm(x) a^T, and its threads the columns of the slice.
// Bound: launch latency; the bytes of a and b, which come from the L2 cache.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename X, typename T, typename Y, int kEach>
__global__ void __launch_bounds__(kFusedThreads)
    FusedKernel(ShrinkParams<X> a, LoraOutputs<Y> out, int part_columns, int slice_columns,
                bool overwrite) {
  extern __shared__ float t[];  // [max_rank], then the chunk of norm(x)
  float* const xs = t + a.max_rank;
  WaitOnDependentGrids();
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int slices = (part_columns + slice_columns - 1) / slice_columns;
  const int part = static_cast<int>(blockIdx.y) / slices;
  const int begin = static_cast<int>(blockIdx.y) % slices * slice_columns;
  const int end = min(begin + slice_columns, part_columns);
  const int adapter = a.adapters[row];
  const LoraPart factors = adapter < 0 ? LoraPart() : a.table[adapter * a.stride + part];
  const int rank = static_cast<int>(factors.rank);
  if (rank == 0 && !overwrite) return;
  if (rank > 0) {
    const X* const x = a.x + row * a.x_stride;
    const RowNorm norm = NormOfRow(a, x);
    for (int i = static_cast<int>(threadIdx.x); i < rank; i += kFusedThreads) t[i] = 0.0f;
    for (int chunk = 0; chunk < a.k; chunk += kChunk) {
      const int count = min(kChunk, a.k - chunk);
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x); c < count; c += kFusedThreads) {
        xs[c] = Normed(a, norm, ToF32(x[chunk + c]), chunk + c);
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x) / 32; i < rank; i += kFusedThreads / 32) {
        const T* const from = static_cast<const T*>(factors.a) + int64_t{i} * a.k + chunk;
        float sum = 0.0f;
#pragma unroll 4
        for (int c = lane * kEach; c < count; c += 32 * kEach) {
          float values[kEach];
          LoadConsecutive(from + c, values);
#pragma unroll
          for (int j = 0; j < kEach; ++j) sum = fmaf(xs[c + j], values[j], sum);
        }
        sum = WarpSum(sum);
        if (lane == 0) t[i] += sum;
      }
    }
    __syncthreads();
  }
  for (int c = begin + static_cast<int>(threadIdx.x); c < end; c += kFusedThreads) {
    const T* const b = static_cast<const T*>(factors.b) + int64_t{c} * rank;
    float sum = 0.0f;
    for (int i = 0; i < rank; i += kRankMultiple) {
      float values[kRankMultiple];
      LoadConsecutive(b + i, values);
#pragma unroll
      for (int j = 0; j < kRankMultiple; ++j) sum = fmaf(t[i + j], values[j], sum);
    }
    Y* const y = out.At(row, part * part_columns + c);
    if (y != nullptr) *y = FromF32<Y>(overwrite ? sum : ToF32(*y) + sum);
  }
}

// Calls visit(adapter, rows) in all lanes of a warp, for each adapter of the warp's rows
// [first, first + 16); bit r of `rows` says whether row first + r has this adapter.
template <typename Visit>
__device__ void ForEachAdapter(const int32_t* adapters, int first, int count, Visit visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int mine = lane < kTileRows && first + lane < count ? adapters[first + lane] : -1;
  unsigned left = __ballot_sync(0xffffffffu, mine >= 0);
  while (left != 0) {
    const int adapter = __shfl_sync(0xffffffffu, mine, __ffs(static_cast<int>(left)) - 1);
    const unsigned rows = __ballot_sync(0xffffffffu, mine == adapter);
    visit(adapter, rows);
    left &= ~rows;
  }
}

template <typename V>
__device__ float2 LoadPair(const V* from) {
  return {ToF32(from[0]), ToF32(from[1])};
}
template <>
__device__ float2 LoadPair<float>(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
template <>
__device__ float2 LoadPair<__nv_bfloat16>(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
template <>
__device__ float2 LoadPair<__half>(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}

// t = norm(x) a^T, for many rows.
// Shapes: x [rows, k] with an even row stride; k a multiple of 16.
// Mapping: a warp has 16 rows and loops over the distinct adapters of these rows; it computes
// kTiles tiles of 8 columns of t together and keeps those of the adapter's rows.
// Bound: reading x; a comes from the L1 and L2 caches.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename X, typename T>
__global__ void __launch_bounds__(kThreads) ShrinkTiles(ShrinkParams<X> a) {
  constexpr int kTiles = 6;
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileRows;
  if (first >= a.rows) return;
  const int g = lane / 4, pair = lane % 4 * 2;
  // Rows past the last one are read as the last one; their results are dropped.
  const X* const x0 = a.x + min(first + g, a.rows - 1) * a.x_stride;
  const X* const x1 = a.x + min(first + g + 8, a.rows - 1) * a.x_stride;
  RowNorm norm0, norm1;
  if (a.gamma != nullptr) {
    for (int r = 0; r < kTileRows; ++r) {
      const RowNorm norm = NormOfRow(a, a.x + min(first + r, a.rows - 1) * a.x_stride);
      if (r == g) norm0 = norm;
      if (r == g + 8) norm1 = norm;
    }
  }
  const int elements = a.parts * a.max_rank;
  ForEachAdapter(a.adapters, first, a.rows, [&](int adapter, unsigned rows) {
    for (int begin = 0; begin < elements; begin += 8 * kTiles) {
      float sums[kTiles][4] = {};
      const T* from[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int e = begin + 8 * j;
        from[j] = nullptr;
        if (e >= elements) continue;
        const LoraPart factors = a.table[adapter * a.stride + e / a.max_rank];
        const int i = e % a.max_rank;
        if (i < factors.rank) {
          from[j] = static_cast<const T*>(factors.a) + int64_t{i + g} * a.k + pair;
        }
      }
      for (int k = 0; k < a.k; k += 16) {
        const auto load = [&](const X* x, const RowNorm& norm, int c) {
          const float2 v = LoadPair(x + c);
          return PackPair<T>(Normed(a, norm, v.x, c), Normed(a, norm, v.y, c + 1));
        };
        const int c = k + pair;
        const uint32_t a0 = load(x0, norm0, c), a1 = load(x1, norm1, c);
        const uint32_t a2 = load(x0, norm0, c + 8), a3 = load(x1, norm1, c + 8);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          if (from[j] == nullptr) continue;
          const uint32_t b0 = *reinterpret_cast<const uint32_t*>(from[j] + k);
          const uint32_t b1 = *reinterpret_cast<const uint32_t*>(from[j] + k + 8);
          Mma<T>(sums[j], a0, a1, a2, a3, b0, b1);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (from[j] == nullptr) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = g + 8 * half;
          if ((rows >> r & 1) == 0) continue;
          float* const t = a.t + int64_t{first + r} * elements + begin + 8 * j + pair;
          *reinterpret_cast<float2*>(t) = {sums[j][2 * half], sums[j][2 * half + 1]};
        }
      }
    }
  });
}

// Outputs += t b, for many rows; t is the result of ShrinkTiles, b the adapter's second factor.
// Shapes: part_columns a multiple of 8.
// Mapping: a warp has 16 rows and 64 columns, and loops over the distinct adapters of the rows.
// Bound: reading and writing the outputs.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename T, typename Y>
__global__ void __launch_bounds__(kThreads) ExpandTiles(ExpandParams<Y> a) {
  constexpr int kTiles = 8;
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileRows;
  if (first >= a.rows) return;
  const int g = lane / 4, pair = lane % 4 * 2;
  const int begin = static_cast<int>(blockIdx.y) * 8 * kTiles, n = a.parts * a.part_columns;
  const int elements = a.parts * a.max_rank;
  ForEachAdapter(a.adapters, first, a.rows, [&](int adapter, unsigned rows) {
    const bool own[2] = {(rows >> g & 1) != 0, (rows >> (g + 8) & 1) != 0};
    const float* const t0 = a.t + int64_t{first + g} * elements;
    const float* const t1 = a.t + int64_t{first + g + 8} * elements;
#pragma unroll 2
    for (int j = 0; j < kTiles; ++j) {
      const int column = begin + 8 * j;
      if (column >= n) break;
      const int part = column / a.part_columns, c = column % a.part_columns;
      const LoraPart factors = a.table[adapter * a.stride + part];
      if (factors.rank == 0) continue;
      const T* const b = static_cast<const T*>(factors.b) + (c + g) * factors.rank + pair;
      float sums[4] = {};
      for (int i = 0; i < factors.rank; i += 16) {
        const int at = part * a.max_rank + i + pair;
        const auto load = [&](bool row_is_own, const float* t) {
          const float2 v = row_is_own ? LoadPair(t) : float2{0.0f, 0.0f};
          return PackPair<T>(v.x, v.y);
        };
        Mma<T>(sums, load(own[0], t0 + at), load(own[1], t1 + at), load(own[0], t0 + at + 8),
               load(own[1], t1 + at + 8), *reinterpret_cast<const uint32_t*>(b + i),
               *reinterpret_cast<const uint32_t*>(b + i + 8));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!own[half]) continue;
        Y* const y = a.out.At(first + g + 8 * half, column + pair);
        if (y == nullptr) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float sum = sums[2 * half + i];
          y[i] = FromF32<Y>(a.overwrite ? sum : ToF32(y[i]) + sum);
        }
      }
    }
  });
}

// Clears y in rows without an adapter, and in columns that the row's adapter does not change.
__global__ void __launch_bounds__(kThreads) ClearRows(ExpandParams<float> a) {
  WaitOnDependentGrids();
  const int row = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.parts * a.part_columns) return;
  const int adapter = a.adapters[row];
  const int part = column / a.part_columns;
  if (adapter >= 0 && a.table[adapter * a.stride + part].rank > 0) return;
  a.out.y[row * a.out.y_stride + column] = 0.0f;
}

unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <typename X>
ShrinkParams<X> ShrinkParamsOf(const AddLoraArgs& args, Stream& stream) {
  const LoraWeight& w = *args.weight;
  ShrinkParams<X> a{};
  a.x = args.x.as<X>();
  a.x_stride = args.x.stride[0];
  a.gamma = args.norm_gamma.as<float>();
  a.beta = args.norm_beta.as<float>();
  a.eps = args.norm_eps;
  a.table = w.table;
  a.stride = w.stride;
  a.adapters = stream.DevicePtr(args.adapters.data());
  a.t = args.scratch.as<float>();
  a.rows = static_cast<int>(args.x.dim[0]);
  a.k = static_cast<int>(w.k);
  a.parts = static_cast<int>(w.parts);
  a.max_rank = static_cast<int>(w.max_rank);
  return a;
}

template <typename Y>
LoraOutputs<Y> OutputsOf(const AddLoraArgs& args, Stream& stream) {
  LoraOutputs<Y> out{};
  if (args.scatter.base != nullptr) {
    out.y = static_cast<Y*>(args.scatter.base);
    out.row_offset = stream.DevicePtr(args.scatter.row_offset);
    out.chunk_offset = stream.DevicePtr(args.scatter.chunk_offset);
    out.chunk = static_cast<int>(args.scatter.chunk);
  } else {
    out.y = args.y.as<Y>();
    out.y_stride = args.y.stride[0];
  }
  if (args.kv.cache != nullptr) {
    const KvCache& cache = *args.kv.cache;
    out.slots = stream.DevicePtr(args.kv.slots.data());
    out.cache = cache.as<Y>();
    out.page_elements = cache.page_elements();
    out.layer_offset = cache.ChunkOffset(args.kv.layer, false, 0);
    out.page_size = static_cast<int>(cache.page_size);
    out.inner = static_cast<int>(cache.heads * cache.head_dim);
    out.head_dim = static_cast<int>(cache.head_dim);
  }
  return out;
}

template <typename X, typename T, typename Y>
void AddFused(const AddLoraArgs& args, Stream& stream) {
  const ShrinkParams<X> a = ShrinkParamsOf<X>(args, stream);
  const int columns = static_cast<int>(args.weight->part_columns);
  const int slice = std::min(columns, kSliceColumns);
  const auto shared = static_cast<size_t>(a.max_rank + std::min(a.k, kChunk)) * sizeof(float);
  const auto kernel = a.k % 8 == 0 ? FusedKernel<X, T, Y, 8> : FusedKernel<X, T, Y, 1>;
  Launch(stream, dim3(static_cast<unsigned>(a.rows), a.parts * Blocks(columns, slice)),
         dim3(kFusedThreads), shared, kernel, a, OutputsOf<Y>(args, stream), columns, slice,
         args.overwrite);
}

template <typename X, typename T, typename Y>
void AddTiles(const AddLoraArgs& args, Stream& stream) {
  const LoraWeight& w = *args.weight;
  const ShrinkParams<X> a = ShrinkParamsOf<X>(args, stream);
  const unsigned row_tiles = Blocks(a.rows, kWarps * kTileRows);
  Launch(stream, dim3(row_tiles), dim3(kThreads), 0, ShrinkTiles<X, T>, a);
  ExpandParams<Y> e{};
  e.t = a.t;
  e.table = w.table;
  e.stride = w.stride;
  e.adapters = a.adapters;
  e.out = OutputsOf<Y>(args, stream);
  e.rows = a.rows;
  e.parts = a.parts;
  e.part_columns = static_cast<int>(w.part_columns);
  e.max_rank = a.max_rank;
  e.overwrite = args.overwrite;
  if constexpr (sizeof(Y) == 4) {
    if (args.overwrite) {
      Launch(stream, dim3(static_cast<unsigned>(a.rows), Blocks(w.n(), kThreads)), dim3(kThreads),
             0, ClearRows, e);
    }
  }
  Launch(stream, dim3(row_tiles, Blocks(w.n(), 64)), dim3(kThreads), 0, ExpandTiles<T, Y>, e);
}

template <typename X, typename T, typename Y>
void Add(const AddLoraArgs& args, bool tiles, Stream& stream) {
  if constexpr (sizeof(T) == 2) {
    if (tiles) return AddTiles<X, T, Y>(args, stream);
  }
  AddFused<X, T, Y>(args, stream);
}

// Whether the kernels that use tensor cores can compute this call, and are faster.
bool UsesTiles(const AddLoraArgs& args) {
  const LoraWeight& w = *args.weight;
  const Tensor& x = args.x;
  const bool pairs = x.stride[0] % 2 == 0 && reinterpret_cast<uintptr_t>(x.data) % 8 == 0;
  const bool whole_chunks = args.scatter.base == nullptr || args.scatter.chunk % 2 == 0;
  const bool whole_heads = args.kv.cache == nullptr || args.kv.cache->head_dim % 2 == 0;
  return w.dtype != DType::kF32 && x.dim[0] >= kFewRows && w.k % 16 == 0 && pairs &&
         w.part_columns % 8 == 0 && whole_chunks && whole_heads;
}

}  // namespace

void AddLora(const AddLoraArgs& args, Stream& stream) {
  if (args.x.dim[0] == 0) return;
  const LoraWeight& w = *args.weight;
  QT_CHECK_EQ(w.max_rank % kRankMultiple, 0);
  const bool tiles = UsesTiles(args);
  const DType out = args.scatter.base != nullptr ? args.scatter.dtype : args.y.dtype;
  DispatchDType(w.dtype, [&](auto factor) {
    using T = typename decltype(factor)::type;
    const auto run = [&](auto x) {
      using X = typename decltype(x)::type;
      out == DType::kF32 ? Add<X, T, float>(args, tiles, stream)
                         : Add<X, T, T>(args, tiles, stream);
    };
    args.x.dtype == DType::kF32 ? run(TypeTag<float>()) : run(TypeTag<T>());
  });
}

}  // namespace quintet::cuda
