// Attention of many queries in bf16 or f16 by Hopper's tensor cores (wgmma): one warpgroup copies
// keys and values, two compute.
#include "kernels/attention_call.cuh"
#include "kernels/attention_softmax.cuh"
#include "kernels/wgmma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kWarpgroup = 128;  // threads
constexpr int kComputing = 2;    // warpgroups, of 64 queries each
constexpr int kThreads = (1 + kComputing) * kWarpgroup;
constexpr int kGroupRows = 64;
constexpr int kRows = kComputing * kGroupRows;
constexpr int kKeys = 128;  // of a tile
constexpr int kStages = 2;
constexpr int kStrip = kGroupRows + kKeys;  // one value for each diagonal of a tile

// Barriers of a block, 8 bytes each in shared memory: full ones are for who computes, empty ones
// for who copies.
struct Barriers {
  uint64_t queries_full;
  uint64_t keys_full[kStages], keys_empty[kStages];
  uint64_t values_full[kStages], values_empty[kStages];
};

// Matrices of 64 channels each, as wgmma.cuh describes them.
template <typename T, int kDim>
struct HopperMemory {
  T q[kDim / 64][kRows * 64];
  T k[kStages][kDim / 64][kKeys * 64];
  T v[kStages][kDim / 64][kKeys * 64];
  float strip[kComputing][2][kStrip];
  Barriers barriers;

  // Element of a 16-byte piece of a row in one of the matrices.
  __device__ static int Swizzled(int row, int piece) { return row * 64 + (piece ^ (row & 7)) * 8; }
};

// What both roles know of their block.
template <typename T, int kDim>
struct HopperBlock {
  const AttentionCall& call;
  HopperMemory<T, kDim>& memory;
  Sequence sequence;
  int64_t head, row;  // row: the block's first query in call.q
  int rows, position;
  KeyRange range;

  __device__ HopperBlock(const AttentionCall& call, HopperMemory<T, kDim>& memory,
                         const QueryBlock& block, int head)
      : call(call),
        memory(memory),
        sequence(call, block.sequence),
        head(head),
        row(sequence.first_row + block.row),
        rows(min(kRows, sequence.q_len - block.row)),
        position(sequence.position + block.row),
        range(Bias(), position, rows, sequence.kv_len, kKeys) {}

  __device__ HeadBias Bias() const {
    return HeadBias(call.bias, call.causal, static_cast<int>(head), call.heads);
  }
  __device__ int Tiles() const { return max(0, (range.end - range.begin + kKeys - 1) / kKeys); }
};

// ---- The warpgroup that copies ----

// Rows [0, kRowCount) of head_dim values to shared memory, zeros from `count` (at least 1) on;
// row_of(r) is where row r begins.
template <typename T, int kDim, int kRowCount, typename RowOf>
__device__ __forceinline__ void CopyRows(T (&to)[kDim / 64][kRowCount * 64], int head_dim,
                                         int count, const RowOf& row_of) {
  constexpr int kPieces = kDim / 8;  // of a row
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, piece = thread % kPieces;
  const bool inside = piece * 8 < head_dim;
#pragma unroll 4
  for (int r = thread / kPieces; r < kRowCount; r += kWarpgroup / kPieces) {
    const T* from = row_of(min(r, count - 1)) + (inside ? piece * 8 : 0);
    CopyAsync16(SharedAddress(&to[piece / 8][HopperMemory<T, kDim>::Swizzled(r, piece % 8)]), from,
                inside && r < count);
  }
}

template <typename T, int kDim>
__device__ __forceinline__ void CopyForBlock(const HopperBlock<T, kDim>& block) {
  const AttentionCall& call = block.call;
  Barriers& barriers = block.memory.barriers;
  const T* q = static_cast<const T*>(call.q) + block.row * call.q_row + block.head * call.q_head;
  CopyRows<T, kDim, kRows>(block.memory.q, call.head_dim, block.rows,
                           [&](int r) { return q + r * call.q_row; });
  ArriveAfterCopies(SharedAddress(&barriers.queries_full));

  const T* k = static_cast<const T*>(call.k) + block.head * call.k_head;
  const T* v = static_cast<const T*>(call.v) + block.head * call.v_head;
  const KeyRows key_rows(call, block.sequence.index);
  const int tiles = block.Tiles();
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = block.range.begin + tile * kKeys, stage = tile % kStages;
    const uint32_t parity = static_cast<uint32_t>(tile / kStages + 1) & 1;
    const int keys = block.sequence.kv_len - begin;
    Wait(SharedAddress(&barriers.keys_empty[stage]), parity);
    CopyRows<T, kDim, kKeys>(block.memory.k[stage], call.head_dim, keys,
                             [&](int j) { return k + key_rows.Row(begin + j) * call.k_row; });
    ArriveAfterCopies(SharedAddress(&barriers.keys_full[stage]));
    Wait(SharedAddress(&barriers.values_empty[stage]), parity);
    CopyRows<T, kDim, kKeys>(block.memory.v[stage], call.head_dim, keys,
                             [&](int j) { return v + key_rows.Row(begin + j) * call.v_row; });
    ArriveAfterCopies(SharedAddress(&barriers.values_full[stage]));
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- A warpgroup that computes: 64 queries ----

template <typename T, int kDim>
class HopperGroup {
  using Memory = HopperMemory<T, kDim>;
  static constexpr int kMatrixBytes = kKeys * 64 * static_cast<int>(sizeof(T));

 public:
  __device__ __forceinline__ HopperGroup(const HopperBlock<T, kDim>& block, int group)
      : block_(block), group_(group), position_(block.position + group * kGroupRows) {}

  // The scores of a tile are computed while the values of the one before it are being added.
  __device__ __forceinline__ void Run() {
    const int tiles = block_.Tiles();
    if (tiles > 0) {
      WaitFull(block_.memory.barriers.queries_full, 0);
      float shrink[2];
      BeginScores(0);
      WaitForProducts<0>();
      Weigh(0, shrink);
      for (int tile = 1; tile < tiles; ++tile) {
        Round();
        BeginScores(tile);
        BeginValues(tile - 1);
        WaitForProducts<1>();
        Weigh(tile, shrink);
        WaitForProducts<0>();
        Pin(out_);
        Pin(scores_);  // they are rounded into registers that the products have read until now
        Release(block_.memory.barriers.values_empty[(tile - 1) % kStages]);
        Shrink(out_, shrink);
      }
      Round();
      BeginValues(tiles - 1);
      WaitForProducts<0>();
      Pin(out_);
    }
    Write();
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query of this warp in its warpgroup.
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16; }

  __device__ __forceinline__ static void WaitFull(uint64_t& barrier, int use) {
    Wait(SharedAddress(&barrier), static_cast<uint32_t>(use) & 1);
    ShowToTensorCores();
  }
  // This warp is done with what a full barrier announced.
  __device__ __forceinline__ static void Release(uint64_t& empty) {
    __syncwarp();
    if (Lane() == 0) Arrive(SharedAddress(&empty));
  }

  // scores_ = q k^T of a tile, under way.
  __device__ __forceinline__ void BeginScores(int tile) {
    const int stage = tile % kStages;
    WaitFull(block_.memory.barriers.keys_full[stage], tile / kStages);
    Pin(scores_);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const uint32_t bytes = step % 4 * 32;
      const uint64_t q = Describe(
          SharedAddress(block_.memory.q[step / 4]) + group_ * kGroupRows * 128 + bytes, 16);
      const uint64_t k = Describe(SharedAddress(block_.memory.k[stage][step / 4]) + bytes, 16);
      Wgmma<T>(scores_, q, k, step > 0);
    }
    CommitProducts();
  }

  // out_ += weights v of a tile, under way.
  __device__ __forceinline__ void BeginValues(int tile) {
    const int stage = tile % kStages;
    WaitFull(block_.memory.barriers.values_full[stage], tile / kStages);
    Pin(out_);
    BeginProducts();
    const uint32_t v = SharedAddress(block_.memory.v[stage][0]);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Wgmma<T>(out_, weights_[step], Describe(v + step * 16 * 128, kMatrixBytes), true);
    }
    CommitProducts();
  }

  // Scores, complete, become weights; the tile's keys are released.
  __device__ __forceinline__ void Weigh(int tile, float (&shrink)[2]) {
    const int begin = block_.range.begin + tile * kKeys;
    const int keys = block_.sequence.kv_len - begin;
    const int lo = begin - (position_ + kGroupRows - 1), hi = begin + kKeys - 1 - position_;
    float scale = 1.0f, shift = 0.0f;
    const bool plain = block_.call.scale >= 0.0f && keys >= kKeys && block_.Bias().Constant(lo, hi);
    if (plain) {
      scale = block_.call.scale * kLog2E;
      shift = block_.Bias().At(lo);
    } else {
      FillStrip(tile, lo);
    }
    Pin(scores_);
    Release(block_.memory.barriers.keys_empty[tile % kStages]);
    if (!plain) AddBias<false>(scores_, block_.Bias(), BiasOf(tile, begin, keys));
    softmax_.Weigh(scores_, scale, shift, shrink);
  }

  // The bias at every distance of the tile, from `first` on. Two strips take turns, so that no warp
  // still reads what is written.
  __device__ __forceinline__ void FillStrip(int tile, int first) {
    const HeadBias bias = block_.Bias();
    float* strip = block_.memory.strip[group_][tile % 2];
    for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kStrip; i += kWarpgroup) {
      strip[i] = bias.At(first + i);
    }
    SyncWarpgroup(1 + group_);
  }

  __device__ __forceinline__ TileBias BiasOf(int tile, int begin, int keys) const {
    TileBias of;
    of.strip = block_.memory.strip[group_][tile % 2] + kGroupRows - 1 - WarpRow();
    of.delta = begin - (position_ + WarpRow());
    of.keys = keys;
    of.scale = block_.call.scale * kLog2E;
    return of;
  }

  __device__ __forceinline__ void Round() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) RoundWeights<T>(scores_, step, weights_[step]);
  }

  // out_ / sum through this warp's queries in shared memory, so that lanes write 16 bytes side by
  // side.
  __device__ __forceinline__ void Write() {
    if (block_.Tiles() == 0) WaitFull(block_.memory.barriers.queries_full, 0);  // copies are over
    SyncWarpgroup(1 + group_);  // the other warps' products have read their queries
    const int first = group_ * kGroupRows + WarpRow();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = softmax_.InverseSum(half);
      const int row = first + half * 8 + Lane() / 4;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        T* to = &block_.memory.q[n / 8][Memory::Swizzled(row, n % 8)] + Lane() % 4 * 2;
        *reinterpret_cast<uint32_t*>(to) =
            PackPair<T>(out_[n][2 * half] * scale, out_[n][2 * half + 1] * scale);
      }
    }
    __syncwarp();
    constexpr int kPieces = kDim / 8;
    const int piece = Lane() % kPieces;
    T* out = static_cast<T*>(block_.call.out) + block_.row * block_.call.out_row +
             block_.head * block_.call.out_head + piece * 8;
#pragma unroll
    for (int i = Lane() / kPieces; i < 16; i += 32 / kPieces) {
      const int row = first + i;
      if (row >= block_.rows || piece * 8 >= block_.call.head_dim) continue;
      *reinterpret_cast<uint4*>(out + row * block_.call.out_row) = *reinterpret_cast<const uint4*>(
          &block_.memory.q[piece / 8][Memory::Swizzled(row, piece % 8)]);
    }
  }

  const HopperBlock<T, kDim>& block_;
  const int group_, position_;  // position_: of the group's first query

  float scores_[kKeys / 8][4];
  uint32_t weights_[kKeys / 16][4];
  float out_[kDim / 8][4] = {};
  OnlineSoftmax softmax_;
};

// What: out = softmax(scale q k^T + bias + mask) v, one head and up to 128 queries of a
// sequence.
// Shapes: q, out [rows, heads, head_dim], k, v rows of head_dim values at 16-byte addresses,
// head_dim up to kDim; T is bf16 or f16.
// Math: as attention_tiled.cu, without FIRE.
// Map: grid (query blocks, heads). Warpgroup 0 copies tiles of 128 keys and values into two
// stages each; warpgroups 1 and 2 have 64 queries each, products by wgmma, scores and sums in
// registers. While the tensor cores add the values of one tile and score the next, the other
// warpgroup is in its softmax.
// Bound: 4 rows kv_len head_dim FLOP against 790 TFLOP/s on an H200; at head_dim 64 the
// exponentials take as long as the products.
// Spec: tests/kernels/attention_test.cc.
//
// Versions on an H200, bf16, 16 heads, 16384 tokens in one sequence, TFLOP/s at head_dim 64 and 128:
//   1 this: 352 and 428 without bias, 353 and 429 with a table (attention_tiled.cu: 227 and 230).
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    AttendHopperKernel(const __grid_constant__ AttentionCall call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  HopperMemory<T, kDim>& memory = *reinterpret_cast<HopperMemory<T, kDim>*>(shared);
  WaitForInputs();
  const QueryBlock query_block(call, static_cast<int>(blockIdx.x), kRows);
  if (query_block.sequence < 0) return;
  Barriers& barriers = memory.barriers;
  if (threadIdx.x == 0) {
    InitBarrier(SharedAddress(&barriers.queries_full), kWarpgroup);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(SharedAddress(&barriers.keys_full[stage]), kWarpgroup);
      InitBarrier(SharedAddress(&barriers.values_full[stage]), kWarpgroup);
      InitBarrier(SharedAddress(&barriers.keys_empty[stage]), kComputing * 4);
      InitBarrier(SharedAddress(&barriers.values_empty[stage]), kComputing * 4);
    }
  }
  __syncthreads();
  const HopperBlock<T, kDim> block(call, memory, query_block, static_cast<int>(blockIdx.y));
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (warpgroup == 0) {
    GiveRegisters<40>();
    CopyForBlock(block);
  } else {
    TakeRegisters<232>();
    HopperGroup<T, kDim>(block, warpgroup - 1).Run();
  }
#endif
}

template <typename T, int kDim>
void LaunchHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  constexpr int kSharedBytes = sizeof(HopperMemory<T, kDim>);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      AttendHopperKernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (!QT_CUDA(stream.device(), allowed)) return;
  const int64_t blocks = MostQueryBlocks(rows_total, call.sequences, kRows);
  Launch(stream, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(call.heads)),
         dim3(kThreads), kSharedBytes, AttendHopperKernel<T, kDim>, call);
}

}  // namespace

template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  if (call.head_dim <= 64) return LaunchHopper<T, 64>(call, rows_total, stream);
  LaunchHopper<T, 128>(call, rows_total, stream);
}
template void AttendHopper<__nv_bfloat16>(const AttentionCall&, int64_t, Stream&);
template void AttendHopper<__half>(const AttentionCall&, int64_t, Stream&);

}  // namespace quintet::cuda
