#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear/lora_tiles.cuh"

// LoRA corrections on the GPU. With few rows, or with f32 factors, one kernel computes them
// (FusedKernel). With many rows, two kernels that use tensor cores compute them
// (linear/lora_tiles.cuh).

namespace quintet::cuda {
namespace {

using namespace lora;

constexpr int kRankMultiple = static_cast<int>(kLoraRankMultiple);
constexpr int kFusedThreads = 256;
constexpr int kChunk = 8192;         // values of a row of x in shared memory
constexpr int kSliceColumns = 1024;  // maximum columns of a CTA of FusedKernel
constexpr int64_t kFewRows = 192;    // fewer rows than this use FusedKernel

// How FusedKernel divides the columns of a part.
struct Slices {
  int part_columns, columns, count;
};

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
// CTA computes norm(x) a^T (ShrinkRow); then each thread computes up to kColumns columns of the
// slice. kRank16: all ranks are 16; the values of b are then loaded before the previous kernel has
// ended.
// Bound: latency of the launch and of the loads of x and a; a and b come from the L2 cache.
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

unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <typename X>
ShrinkParams<X> ShrinkParamsOf(const AddLoraArgs& args, CudaStream& stream) {
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
LoraOutputs<Y> OutputsOf(const AddLoraArgs& args, CudaStream& stream) {
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
void AddFused(const AddLoraArgs& args, CudaStream& stream) {
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
void AddTiles(const AddLoraArgs& args, CudaStream& stream) {
  const LoraWeight& w = *args.weight;
  const ShrinkParams<X> a = ShrinkParamsOf<X>(args, stream);
  Launch(stream, dim3(Blocks(a.rows, kTileRows)), dim3(kShrinkThreads), 0, ShrinkTiles<X, T>, a);
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
void Add(const AddLoraArgs& args, bool tiles, CudaStream& stream) {
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

void AddLora(const AddLoraArgs& args, CudaStream& stream) {
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
