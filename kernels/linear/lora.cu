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
constexpr int kTileRows = 16;       // rows of a warp
constexpr int kExpandColumns = 64;  // columns of a warp in ExpandTiles
constexpr int64_t kFewRows = 192;   // fewer rows than this use FusedKernel

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
#pragma unroll 8
    for (int c = lane; c < a.k; c += 32) sum += ToF32(x[c]);
    norm.mean = WarpSum(sum) * inverse;
  }
  float squares = 0.0f;
#pragma unroll 8
  for (int c = lane; c < a.k; c += 32) {
    const float v = ToF32(x[c]) - norm.mean;
    squares += v * v;
  }
  norm.scale = rsqrtf(WarpSum(squares) * inverse + a.eps);
  return norm;
}

// How FusedKernel divides the columns of a part.
struct Slices {
  int part_columns, columns, count;
};

// The table does not change while kernels run, so it may be read before WaitOnDependentGrids.
__device__ LoraPart LoadPart(const LoraPart* from) {
  const auto* const words = reinterpret_cast<const unsigned long long*>(from);
  LoraPart part;
  part.a = reinterpret_cast<const void*>(__ldcg(words));
  part.b = reinterpret_cast<const void*>(__ldcg(words + 1));
  part.rank = static_cast<int64_t>(__ldcg(words + 2));
  return part;
}

// Puts norm(x) of a whole row into xs [k].
template <typename X>
__device__ void NormalizeRow(const ShrinkParams<X>& a, const X* x, float* xs) {
  __shared__ float shared[32];
  const float inverse = 1.0f / static_cast<float>(a.k);
  float sum = 0.0f, squares = 0.0f;
  for (int c = static_cast<int>(threadIdx.x); c < a.k; c += kFusedThreads) {
    xs[c] = ToF32(x[c]);
    sum += xs[c];
  }
  RowNorm norm;
  if (a.beta != nullptr) norm.mean = BlockSum(sum, shared) * inverse;
  for (int c = static_cast<int>(threadIdx.x); c < a.k; c += kFusedThreads) {
    const float v = xs[c] - norm.mean;
    squares += v * v;
  }
  norm.scale = rsqrtf(BlockSum(squares, shared) * inverse + a.eps);
  for (int c = static_cast<int>(threadIdx.x); c < a.k; c += kFusedThreads) {
    xs[c] = Normed(a, norm, xs[c], c);
  }
}

// Computes t [rank] = norm(x) a^T for one row, with all threads of a CTA of FusedKernel. xs: shared
// memory for min(k, kChunk) values of norm(x).
template <typename T, int kEach, typename X>
__device__ void ShrinkRow(const ShrinkParams<X>& a, const X* x, const LoraPart& factors, float* t,
                          float* xs) {
  constexpr int kWarpsEach = kFusedThreads / 32;
  const int rank = static_cast<int>(factors.rank), lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < rank; i += kFusedThreads) t[i] = 0.0f;
  for (int chunk = 0; rank > 0 && chunk < a.k; chunk += kChunk) {
    const int count = min(kChunk, a.k - chunk);
    __syncthreads();
    if (a.gamma != nullptr) {
      NormalizeRow(a, x, xs);
    } else {
      for (int c = static_cast<int>(threadIdx.x); c < count; c += kFusedThreads) {
        xs[c] = ToF32(x[chunk + c]);
      }
    }
    __syncthreads();
    // A warp computes two elements at once.
    for (int i = static_cast<int>(threadIdx.x) / 32; i < rank; i += 2 * kWarpsEach) {
      const int other = min(i + kWarpsEach, rank - 1);
      const T* const from = static_cast<const T*>(factors.a) + chunk;
      float sum[2] = {};
#pragma unroll 4
      for (int c = lane * kEach; c < count; c += 32 * kEach) {
        float values[2][kEach];
        LoadConsecutive(from + int64_t{i} * a.k + c, values[0]);
        LoadConsecutive(from + int64_t{other} * a.k + c, values[1]);
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sum[0] = fmaf(xs[c + j], values[0][j], sum[0]);
          sum[1] = fmaf(xs[c + j], values[1][j], sum[1]);
        }
      }
      sum[0] = WarpSum(sum[0]);
      sum[1] = WarpSum(sum[1]);
      if (lane == 0) t[i] += sum[0];
      if (lane == 0 && i + kWarpsEach < rank) t[other] += sum[1];
    }
  }
  __syncthreads();
}

// Outputs += norm(x) a^T b, for few rows, in one kernel.
// Shapes: x [rows, k], any row stride, k <= kChunk if there is a norm; outputs [rows, parts *
// part_columns], see LoraOutputs.
// Mapping: blockIdx.x is the row, blockIdx.y a slice of the columns of one part of the outputs. The
// CTA computes norm(x) a^T (ShrinkRow), then each thread up to kColumns columns of the slice.
// kRank16: all ranks are 16; the values of b are then loaded before the previous kernel has ended.
// Bound: latency of the launch, of x and of a; a and b come from the L2 cache.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename X, typename T, typename Y, int kEach, bool kRank16>
__global__ void __launch_bounds__(kFusedThreads)
    FusedKernel(ShrinkParams<X> a, LoraOutputs<Y> out, Slices slices, bool overwrite) {
  constexpr int kColumns = kSliceColumns / kFusedThreads;
  extern __shared__ float t[];  // [max_rank], then the chunk of norm(x)
  const int row = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y) / slices.count;
  const int slice = static_cast<int>(blockIdx.y) % slices.count * slices.columns;
  const int end = min(slice + slices.columns, slices.part_columns);
  const int begin = slice + static_cast<int>(threadIdx.x);
  const int adapter = __ldcg(a.adapters + row);
  LoraPart factors;
  if (adapter >= 0) factors = LoadPart(a.table + adapter * a.stride + part);
  const int rank = static_cast<int>(factors.rank);
  const auto* const b = static_cast<const T*>(factors.b);
  uint4 held[kColumns][2] = {};  // kRank16: 16 values of b for each column
#pragma unroll
  for (int j = 0; j < kColumns && kRank16; ++j) {
    const int c = begin + j * kFusedThreads;
    if (c >= end || rank == 0) break;
    const auto* const from = reinterpret_cast<const uint4*>(b + int64_t{c} * 16);
    held[j][0] = __ldg(from);
    held[j][1] = __ldg(from + 1);
  }
  WaitOnDependentGrids();
  if (rank == 0 && !overwrite) return;
  Y* ys[kColumns];
  float sums[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int c = begin + j * kFusedThreads;
    ys[j] = c < end ? out.At(row, part * slices.part_columns + c) : nullptr;
    sums[j] = ys[j] == nullptr || overwrite ? 0.0f : ToF32(*ys[j]);
  }
  ShrinkRow<T, kEach>(a, a.x + row * a.x_stride, factors, t, t + a.max_rank);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (ys[j] == nullptr) continue;
    for (int i = 0; i < rank; i += kRankMultiple) {
      float values[kRankMultiple];
      const T* const from = kRank16 ? reinterpret_cast<const T*>(held[j])
                                    : b + int64_t{begin + j * kFusedThreads} * rank + i;
      LoadConsecutive(from, values);
#pragma unroll
      for (int m = 0; m < kRankMultiple; ++m) sums[j] = fmaf(t[i + m], values[m], sums[j]);
    }
    *ys[j] = FromF32<Y>(sums[j]);
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

constexpr int kShrinkTiles = 6;  // tiles of 8 columns of t that ShrinkTiles computes together
constexpr int kShrinkColumns = 8 * kShrinkTiles;

// Two rows of x, g and g + 8 of the 16 rows of a CTA, and their norms.
template <typename X>
struct RowPair {
  const X* x[2];
  RowNorm norm[2];
};

// Adds the products of the rows and of kShrinkTiles tiles of a to `sums`, over this warp's part of
// k: every kWarps-th group of 16 values. from[j]: address of tile j's values for this lane.
template <typename X, typename T>
__device__ void MultiplyTiles(const ShrinkParams<X>& a, const RowPair<X>& rows,
                              const T* const (&from)[kShrinkTiles],
                              float (&sums)[kShrinkTiles][4]) {
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll 2
  for (int k = static_cast<int>(threadIdx.x) / 32 * 16; k < a.k; k += 16 * kWarps) {
    const auto load = [&](int row, int c) {
      const float2 v = LoadPair(rows.x[row] + c);
      const RowNorm& norm = rows.norm[row];
      return PackPair<T>(Normed(a, norm, v.x, c), Normed(a, norm, v.y, c + 1));
    };
    const int c = k + pair;
    const uint32_t a0 = load(0, c), a1 = load(1, c), a2 = load(0, c + 8), a3 = load(1, c + 8);
    uint32_t b[kShrinkTiles][2];
#pragma unroll
    for (int j = 0; j < kShrinkTiles; ++j) {
      b[j][0] = __ldg(reinterpret_cast<const uint32_t*>(from[j] + k));
      b[j][1] = __ldg(reinterpret_cast<const uint32_t*>(from[j] + k + 8));
    }
#pragma unroll
    for (int j = 0; j < kShrinkTiles; ++j) Mma<T>(sums[j], a0, a1, a2, a3, b[j][0], b[j][1]);
  }
}

// Returns the addresses of this lane's values of tiles [begin, begin + kShrinkColumns) of an
// adapter's a, and in *used which of these tiles exist (bit j: tile j). The addresses of the others
// are those of one that exists; their products must be dropped.
template <typename X, typename T>
__device__ void FindTiles(const ShrinkParams<X>& a, int adapter, int begin, unsigned* used,
                          const T* (&from)[kShrinkTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const T* any = nullptr;
  *used = 0;
#pragma unroll
  for (int j = 0; j < kShrinkTiles; ++j) {
    const int e = begin + 8 * j;
    if (e >= a.parts * a.max_rank) break;
    const LoraPart factors = a.table[adapter * a.stride + e / a.max_rank];
    const int i = e % a.max_rank;
    if (i >= factors.rank) continue;
    *used |= 1u << j;
    from[j] = any = static_cast<const T*>(factors.a) + int64_t{i + lane / 4} * a.k + lane % 4 * 2;
  }
#pragma unroll
  for (int j = 0; j < kShrinkTiles; ++j) {
    if ((*used >> j & 1) == 0) from[j] = any;
  }
}

// t = norm(x) a^T, for many rows.
// Shapes: x [rows, k] with an even row stride; k a multiple of 16.
// Mapping: a CTA has 16 rows and loops over the distinct adapters of these rows. It computes
// kShrinkTiles tiles of 8 columns of t together and keeps those of the adapter's rows; its warps
// divide k.
// Bound: reading x; a comes from the L1 and L2 caches.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename X, typename T>
__global__ void __launch_bounds__(kThreads) ShrinkTiles(ShrinkParams<X> a) {
  __shared__ float partial[kWarps][kTileRows][kShrinkColumns];
  __shared__ RowNorm norms[kTileRows];
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * kTileRows, g = lane / 4;
  // Rows past the last one are read as the last one; their results are dropped.
  const auto row_of = [&](int r) { return a.x + min(first + r, a.rows - 1) * a.x_stride; };
  for (int r = warp; r < kTileRows; r += kWarps) {
    const RowNorm norm = NormOfRow(a, row_of(r));
    if (lane == 0) norms[r] = norm;
  }
  __syncthreads();
  const RowPair<X> pair = {{row_of(g), row_of(g + 8)}, {norms[g], norms[g + 8]}};
  const int elements = a.parts * a.max_rank;
  ForEachAdapter(a.adapters, first, a.rows, [&](int adapter, unsigned rows) {
    for (int begin = 0; begin < elements; begin += kShrinkColumns) {
      float sums[kShrinkTiles][4] = {};
      const T* from[kShrinkTiles];
      unsigned used;
      FindTiles(a, adapter, begin, &used, from);
      if (used == 0) continue;
      MultiplyTiles(a, pair, from, sums);
#pragma unroll
      for (int j = 0; j < kShrinkTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          partial[warp][g + i / 2 * 8][8 * j + lane % 4 * 2 + i % 2] = sums[j][i];
        }
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kShrinkColumns; i += kThreads) {
        const int r = i / kShrinkColumns, c = i % kShrinkColumns;
        if ((rows >> r & 1) == 0 || (used >> (c / 8) & 1) == 0) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += partial[w][r][c];
        a.t[int64_t{first + r} * elements + begin + c] = sum;
      }
      __syncthreads();
    }
  });
}

constexpr int kExpandTiles = 4;  // tiles of 8 columns that a lane's columns are spread over

// Adds this lane's products of one row to its 8 consecutive outputs among columns [column, column +
// 32), or stores them. half: which half of the MMA's result belongs to the row.
template <typename Y>
__device__ void AddColumns(const ExpandParams<Y>& a, int row, int half, int column,
                           const float (&sums)[kExpandTiles][4]) {
  Y* const y = a.out.At(row, column + static_cast<int>(threadIdx.x) % 4 * 8);
  if (y == nullptr) return;
  float values[8] = {};
  if (!a.overwrite) LoadConsecutive(y, values);
#pragma unroll
  for (int j = 0; j < kExpandTiles; ++j) {
    values[2 * j] += half == 0 ? sums[j][0] : sums[j][2];
    values[2 * j + 1] += half == 0 ? sums[j][1] : sums[j][3];
  }
  StoreConsecutive(values, y);
}

// Outputs += t b, for many rows; t is the result of ShrinkTiles, b the adapter's second factor.
// Shapes: part_columns a multiple of 32; 8 consecutive outputs are contiguous and 16-byte aligned.
// Mapping: a warp has 16 rows and 64 columns, and loops over the distinct adapters of the rows.
// Column e + 2 j + 8 q of 32 is column e + 2 q of tile j of an MMA (e < 2, j < 4, q < 4), so that
// each lane has 8 consecutive columns of two rows.
// Bound: reading and writing the outputs.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename T, typename Y>
__global__ void __launch_bounds__(kThreads) ExpandTiles(ExpandParams<Y> a) {
  constexpr int kTiles = kExpandTiles, kGroup = 8 * kTiles;
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + warp) * kTileRows;
  if (first >= a.rows) return;
  const int g = lane / 4, quad = lane % 4;
  const int n = a.parts * a.part_columns, elements = a.parts * a.max_rank;
  const int begin = static_cast<int>(blockIdx.y) * kExpandColumns;
  const int end = min(begin + kExpandColumns, n);
  const float zeros[kTiles][4] = {};
  if (a.overwrite) {  // rows without an adapter
    for (int half = 0; half < 2; ++half) {
      const int row = first + g + 8 * half;
      if (row >= a.rows || a.adapters[row] >= 0) continue;
      for (int column = begin; column < end; column += kGroup) {
        AddColumns(a, row, half, column, zeros);
      }
    }
  }
  ForEachAdapter(a.adapters, first, a.rows, [&](int adapter, unsigned rows) {
    const bool own[2] = {(rows >> g & 1) != 0, (rows >> (g + 8) & 1) != 0};
    const float* const t0 = a.t + int64_t{first + g} * elements + 2 * quad;
    const float* const t1 = t0 + int64_t{8} * elements;
    for (int column = begin; column < end; column += kGroup) {
      const int part = column / a.part_columns, c = column % a.part_columns;
      const LoraPart factors = a.table[adapter * a.stride + part];
      if (factors.rank == 0 && !a.overwrite) continue;
      float sums[kTiles][4] = {};
      for (int i = 0; i < factors.rank; i += 16) {
        const auto load = [](bool row_is_own, const float* t) {
          const float2 v = row_is_own ? LoadPair(t) : float2{0.0f, 0.0f};
          return PackPair<T>(v.x, v.y);
        };
        const int at = part * a.max_rank + i;
        const uint32_t a0 = load(own[0], t0 + at), a1 = load(own[1], t1 + at);
        const uint32_t a2 = load(own[0], t0 + at + 8), a3 = load(own[1], t1 + at + 8);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const int at_column = c + g / 2 * 8 + 2 * j + g % 2;
          const T* const b =
              static_cast<const T*>(factors.b) + at_column * factors.rank + i + 2 * quad;
          Mma<T>(sums[j], a0, a1, a2, a3, __ldg(reinterpret_cast<const uint32_t*>(b)),
                 __ldg(reinterpret_cast<const uint32_t*>(b + 8)));
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (own[half]) AddColumns(a, first + g + 8 * half, half, column, sums);
      }
    }
  });
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
  Slices slices{};
  slices.part_columns = static_cast<int>(args.weight->part_columns);
  slices.columns = std::min(slices.part_columns, kSliceColumns);
  slices.count = static_cast<int>(Blocks(slices.part_columns, slices.columns));
  const auto shared = static_cast<size_t>(a.max_rank + std::min(a.k, kChunk)) * sizeof(float);
  QT_CHECK(a.gamma == nullptr || a.k <= kChunk);
  const bool vectors = a.k % 8 == 0;
  auto kernel = vectors ? FusedKernel<X, T, Y, 8, false> : FusedKernel<X, T, Y, 1, false>;
  if constexpr (sizeof(T) == 2) {
    if (vectors && a.max_rank == 16) kernel = FusedKernel<X, T, Y, 8, true>;
  }
  const dim3 grid(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.parts * slices.count));
  Launch(stream, grid, dim3(kFusedThreads), shared, kernel, a, OutputsOf<Y>(args, stream), slices,
         args.overwrite);
}

template <typename X, typename T, typename Y>
void AddTiles(const AddLoraArgs& args, Stream& stream) {
  const LoraWeight& w = *args.weight;
  const ShrinkParams<X> a = ShrinkParamsOf<X>(args, stream);
  Launch(stream, dim3(Blocks(a.rows, kTileRows)), dim3(kThreads), 0, ShrinkTiles<X, T>, a);
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
  const dim3 grid(Blocks(a.rows, kWarps * kTileRows), Blocks(w.n(), kExpandColumns));
  Launch(stream, grid, dim3(kThreads), 0, ExpandTiles<T, Y>, e);
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
  if (w.dtype == DType::kF32 || x.dim[0] < kFewRows) return false;
  const bool pairs = x.stride[0] % 2 == 0 && reinterpret_cast<uintptr_t>(x.data) % 8 == 0;
  bool vectors =
      args.scatter.base == nullptr
          ? Vectorizable(args.y)
          : args.scatter.chunk % 8 == 0 && reinterpret_cast<uintptr_t>(args.scatter.base) % 16 == 0;
  if (args.kv.cache != nullptr) {
    vectors = vectors && args.kv.cache->head_dim % 8 == 0 &&
              reinterpret_cast<uintptr_t>(args.kv.cache->data) % 16 == 0;
  }
  return w.k % 16 == 0 && w.part_columns % 32 == 0 && pairs && vectors;
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
