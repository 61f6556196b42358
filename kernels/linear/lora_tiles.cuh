// LoRA corrections of many rows by tensor cores: ShrinkTiles computes t = norm(x) a^T, [rows, parts
// * max_rank] f32 in scratch memory, and ExpandTiles adds t b to the outputs.
#pragma once

#include "kernels/linear/lora.cuh"
#include "kernels/ptx/mma.cuh"

namespace quintet::cuda::lora {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTileRows = 16;       // rows of a warp
constexpr int kExpandColumns = 64;  // columns of a warp in ExpandTiles

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
__device__ inline float2 LoadPair<float>(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
template <>
__device__ inline float2 LoadPair<__nv_bfloat16>(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}
template <>
__device__ inline float2 LoadPair<__half>(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}

// More than in ExpandTiles: with few rows, the time of ShrinkTiles is that of a warp's part of k.
constexpr int kShrinkThreads = 256;
constexpr int kShrinkWarps = kShrinkThreads / 32;
constexpr int kShrinkTiles = 6;  // tiles of 8 columns of t that ShrinkTiles computes together
constexpr int kShrinkColumns = 8 * kShrinkTiles;

// Two rows of x, g and g + 8 of the 16 rows of a CTA, and their norms.
template <typename X>
struct RowPair {
  const X* x[2];
  RowNorm norm[2];
};

// Adds the products of the rows and of kShrinkTiles tiles of a to `sums`, over this warp's part of
// k: every kShrinkWarps-th group of 16 values. from[j]: address of tile j's values for this lane.
template <typename X, typename T>
__device__ void MultiplyTiles(const ShrinkParams<X>& a, const RowPair<X>& rows,
                              const T* const (&from)[kShrinkTiles],
                              float (&sums)[kShrinkTiles][4]) {
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll 3
  for (int k = static_cast<int>(threadIdx.x) / 32 * 16; k < a.k; k += 16 * kShrinkWarps) {
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

// Finds the tiles of an adapter's factors a for columns [begin, begin + kShrinkColumns) of t. Bit j
// of *used: tile j exists. from[j]: address of this lane's values of tile j. A tile that does not
// exist gets the address of another tile; the caller must ignore its products.
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
// Mapping: a CTA has 16 rows and loops over the distinct adapters of these rows. For each adapter,
// it computes kShrinkTiles tiles of 8 columns of t together for all 16 rows, and stores the rows
// that have the adapter; its warps divide k.
// Bound: reading x; a comes from the L1 and L2 caches.
// Tests: tests/kernels/linear/lora_test.cc.
template <typename X, typename T>
__global__ void __launch_bounds__(kShrinkThreads) ShrinkTiles(ShrinkParams<X> a) {
  __shared__ float partial[kShrinkWarps][kTileRows][kShrinkColumns];
  __shared__ RowNorm norms[kTileRows];
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * kTileRows, g = lane / 4;
  // Rows past the last one are read as the last one; their results are dropped.
  const auto row_of = [&](int r) { return a.x + min(first + r, a.rows - 1) * a.x_stride; };
  for (int r = warp; r < kTileRows; r += kShrinkWarps) {
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
      for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kShrinkColumns;
           i += kShrinkThreads) {
        const int r = i / kShrinkColumns, c = i % kShrinkColumns;
        if ((rows >> r & 1) == 0 || (used >> (c / 8) & 1) == 0) continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kShrinkWarps; ++w) sum += partial[w][r][c];
        a.t[int64_t{first + r} * elements + begin + c] = sum;
      }
      __syncthreads();
    }
  });
}

constexpr int kExpandTiles = 4;  // tiles of 8 columns that a lane's columns are spread over

// Adds this lane's products of one row to its 8 consecutive outputs among columns [column, column +
// 32); with a.overwrite, replaces these outputs by the products. half: which half of the MMA's
// result belongs to the row.
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
// Mapping: a warp has 16 rows and 64 columns, and loops over the distinct adapters of the rows. The
// columns of a group of 32 are permuted: column e + 2 q of MMA tile j is column e + 2 j + 8 q of
// the group (e < 2, j < 4, q < 4). Each lane therefore has 8 consecutive columns of two rows.
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

}  // namespace quintet::cuda::lora
