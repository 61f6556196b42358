// Attention of many queries in bf16 or f16 by Hopper's tensor cores (wgmma): one warpgroup copies,
// two or three compute.
#include "kernels/attention_hopper.cuh"
#include "kernels/attention_hopper_copy.cuh"
#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {
namespace {

// A warpgroup that computes: 64 queries of each of the block's works.
template <typename T, typename S, bool kCached>
class HopperGroup {
  using Memory = HopperMemory<T, S>;
  static constexpr int kDim = S::kDim, kKeys = S::kKeys;
  static constexpr int kMatrixBytes = kKeys * 128;

 public:
  __device__ __forceinline__ HopperGroup(const AttentionCall& call, Memory& memory, int group)
      : call_(call),
        memory_(memory),
        barriers_(memory.barriers),
        group_(group),
        flat_from_(call.bias.kind == BiasKind::kNone ? -(1 << 30) : call.bias.saturation) {}

  __device__ __forceinline__ void Run() {
    if (S::kTurns && group_ == S::kGroups - 1) ArriveThreads(1, 2 * kWarpgroup);
    for (;; queries_.Advance()) {
      Wait(SharedAddress(&barriers_.queries_full[queries_.stage]), queries_.parity);
      const QueryWork& work = memory_.queries[queries_.stage];
      if (work.rows == 0) return;
      position_ = work.position + group_ * kGroupRows;
      softmax_ = OnlineSoftmax();
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[n][e] = 0.0f;
      }
      if (work.any_keys) Attend(work);
      Write(work);
      Release(barriers_.queries_empty[queries_.stage]);
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query of this warp in its warpgroup.
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16; }

  // This warp is done with what a full barrier announced.
  __device__ __forceinline__ static void Release(uint64_t& empty) {
    __syncwarp();
    if (Lane() == 0) Arrive(SharedAddress(&empty));
  }

  // The scores of a tile are computed while the values of the one before it are being added.
  __device__ __forceinline__ void Attend(const QueryWork& work) {
    float shrink[2];
    WaitFull(barriers_.keys_full[place_.stage], place_.parity);
    KeyWork tile = memory_.keys[place_.stage];
    BeginScores();
    WaitForProducts<0>();
    Weigh(work, tile, shrink);
    while (!tile.last) {
      Round();
      const int before = place_.stage;
      const uint32_t before_parity = place_.parity;
      place_.Advance();
      WaitFull(barriers_.keys_full[place_.stage], place_.parity);
      tile = memory_.keys[place_.stage];
      if constexpr (S::kTurns) SyncThreads(1 + group_, 2 * kWarpgroup);
      BeginScores();
      WaitFull(barriers_.values_full[before], before_parity);
      BeginValues(before);
      if constexpr (S::kTurns) {
        ArriveThreads(1 + (group_ + 1 == S::kGroups ? 0 : group_ + 1), 2 * kWarpgroup);
      }
      WaitForProducts<1>();
      Weigh(work, tile, shrink);
      WaitForProducts<0>();
      Pin(out_);
      Pin(scores_);  // they are rounded into registers that the products have read until now
      Release(barriers_.values_empty[before]);
      Shrink(out_, shrink);
    }
    Round();
    WaitFull(barriers_.values_full[place_.stage], place_.parity);
    BeginValues(place_.stage);
    WaitForProducts<0>();
    Pin(out_);
    Release(barriers_.values_empty[place_.stage]);
    place_.Advance();
  }

  __device__ __forceinline__ static void WaitFull(uint64_t& barrier, uint32_t parity) {
    Wait(SharedAddress(&barrier), parity);
    if constexpr (kCached) ShowToAsyncProxy();
  }

  // scores_ = q k^T of the tile at place_, under way.
  __device__ __forceinline__ void BeginScores() {
    Pin(scores_);
    BeginProducts();
    const uint64_t q =
        Describe(SharedAddress(memory_.q[queries_.stage][0]) + group_ * kGroupRows * 128, 16);
    const uint64_t k = Describe(SharedAddress(memory_.k[place_.stage][0]), 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int in_row = step % 4 * 32;
      Wgmma<T>(scores_, q + (step / 4 * S::kRows * 128 + in_row) / 16,
               k + (step / 4 * kMatrixBytes + in_row) / 16, step > 0);
    }
    CommitProducts();
  }

  // out_ += weights v, under way.
  __device__ __forceinline__ void BeginValues(int stage) {
    Pin(out_);
    BeginProducts();
    const uint64_t v = Describe(SharedAddress(memory_.v[stage][0]), kMatrixBytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Wgmma<T>(out_, weights_[step], v + step * 16 * 128 / 16, true);
    }
    CommitProducts();
  }

  // Scores, complete, become weights; the tile's keys are released.
  __device__ __forceinline__ void Weigh(const QueryWork& work, const KeyWork& tile,
                                        float (&shrink)[2]) {
    const int delta = tile.begin - position_;  // of the first query and the first key
    const int lo = delta - (kGroupRows - 1), hi = delta + kKeys - 1;
    const int keys = work.kv_len - tile.begin;
    float scale = call_.scale * kLog2E, shift = 0.0f;
    Pin(scores_);
    Release(barriers_.keys_empty[place_.stage]);
    if ((!call_.causal || hi <= 0) && (hi <= -flat_from_ || lo >= flat_from_)) {
      const int reach = S::Reach(call_.bias.saturation);
      if (call_.bias.kind != BiasKind::kNone) shift = Table()[lo < 0 ? 0 : 2 * reach];
    } else {
      const int first = S::Reach(call_.bias.saturation) + delta - WarpRow();
      AddPairedStrip(scores_, Table(), memory_.table[queries_.stage][1], first, scale);
      scale = 1.0f;
    }
    if (keys < kKeys) HideFrom(scores_, keys);
    if (tile.masked) {
      HideMasked(scores_, SequenceMask(call_, work.sequence), position_ + WarpRow(), tile.begin,
                 work.kv_len);
    }
    softmax_.Weigh(scores_, scale, shift, shrink);
  }

  // Of the work's head, from distance -Reach on.
  __device__ __forceinline__ const float* Table() const { return memory_.table[queries_.stage][0]; }

  __device__ __forceinline__ void Round() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) RoundWeights<T>(scores_, step, weights_[step]);
  }

  // out_ / sum. Four lanes have a row's channels two by two; they trade them, so that each writes
  // 16 bytes.
  __device__ __forceinline__ void Write(const QueryWork& work) const {
    const int t = Lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = softmax_.InverseSum(half);
      const int row = group_ * kGroupRows + WarpRow() + half * 8 + Lane() / 4;
      T* out = static_cast<T*>(call_.out) + (work.row + row) * call_.out_row +
               work.head * call_.out_head + t * 8;
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = PackPair<T>(out_[n + i][2 * half] * scale, out_[n + i][2 * half + 1] * scale);
        }
        const uint4 piece = Transpose(words, t);
        if (row < work.rows && (n + t) * 8 < call_.head_dim) {
          *reinterpret_cast<uint4*>(out + n * 8) = piece;
        }
      }
    }
  }

  // Lane t of four gets word t of each.
  __device__ __forceinline__ static uint4 Transpose(const uint32_t (&words)[4], int t) {
    const bool odd = t % 2 != 0, high = t / 2 != 0;
    const uint32_t near[2] = {__shfl_xor_sync(0xffffffffu, odd ? words[0] : words[1], 1),
                              __shfl_xor_sync(0xffffffffu, odd ? words[2] : words[3], 1)};
    // Words t - t % 2 and the next one of this lane's pair of lanes, for channels 0..1 and 2..3.
    const uint32_t pairs[2][2] = {{odd ? near[0] : words[0], odd ? words[1] : near[0]},
                                  {odd ? near[1] : words[2], odd ? words[3] : near[1]}};
    const uint32_t far[2] = {__shfl_xor_sync(0xffffffffu, high ? pairs[0][0] : pairs[1][0], 2),
                             __shfl_xor_sync(0xffffffffu, high ? pairs[0][1] : pairs[1][1], 2)};
    return high ? uint4{far[0], far[1], pairs[1][0], pairs[1][1]}
                : uint4{pairs[0][0], pairs[0][1], far[0], far[1]};
  }

  const AttentionCall& call_;
  Memory& memory_;
  HopperBarriers<S::kStages>& barriers_;
  const int group_;
  const int flat_from_;  // distance from which on the bias is flat
  RingPlace<2> queries_;
  RingPlace<S::kStages> place_;
  int position_;  // of the group's first query

  float scores_[kKeys / 8][4];
  uint32_t weights_[kKeys / 16][4];
  float out_[kDim / 8][4];
  OnlineSoftmax softmax_;
};

// What: out = softmax(scale q k^T + bias + mask) v, all heads of all sequences.
// Shapes: q, out [rows, heads, head_dim], k, v rows of head_dim values at 16-byte addresses,
// head_dim up to kDim; T is bf16 or f16.
// Math: as attention_tiled.cu; no bias, or a table that saturates by kHopperSaturation.
// Map: as many blocks as multiprocessors; works (64 queries for each warpgroup that computes, one
// head) are dealt to them in advance, to and fro. Of warpgroup 0, one warp asks for boxes of packed
// queries, keys and values ahead of need (keys in a cache: three warps copy them row by row), one
// writes the next work's bias by distance. The others keep scores, weights and sums in registers:
// while the tensor cores score a tile and add the values of the one before it, another warpgroup is
// in its softmax; they queue their products by turns.
// Bound: 4 rows kv_len head_dim FLOP against 790 TFLOP/s on an H200; at head_dim 64 the
// exponentials take as long as the products.
// Spec: tests/kernels/attention_test.cc, attention_mask_test.cc.
//
// Versions on an H200, bf16, 16 heads, 16384 tokens in all, TFLOP/s at head_dim 64 and 128:
//   1 keys by cp.async from a whole warpgroup, a block a work: 352 and 428 in one sequence
//     (attention_tiled.cu: 227 and 230).
//   2 boxes, persistent blocks, turns: predicted 430 and 560, seen 506 and 585; sequences of 512
//     with a table 266 and 367, without one 335 at 64: the table is late.
//     Rejected: head_dim 64: no turns 497, three stages 503, 128 queries 450, 128 queries and 192
//     keys 466. head_dim 128: 160 keys 600 but 307 at 512, 176 keys 595 (causal 615 for 584) but
//     323.
//   3 queries and tables a work ahead, table read by pairs: predicted 310 and 410 at 512 with a
//     table, seen 338 and 488; without 385 and 515. In one sequence 477 and 583 with a table, 486
//     and 589 without. Causal sequences of 2048 stay at 362 and 367: works are dealt unevenly.
template <typename T, typename S, bool kCached>
__global__ void __launch_bounds__(S::kThreads, 1)
    AttendHopperKernel(const __grid_constant__ AttentionCall call,
                       const __grid_constant__ HopperMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  HopperMemory<T, S>& memory = *reinterpret_cast<HopperMemory<T, S>*>(shared);
  WaitForInputs();
  HopperBarriers<S::kStages>& barriers = memory.barriers;
  constexpr int kFull = kCached ? kCacheWarps * 32 + 1 : 1;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      InitBarrier(SharedAddress(&barriers.queries_full[stage]), 2);
      InitBarrier(SharedAddress(&barriers.queries_empty[stage]), S::kGroups * 4);
    }
    InitBarrier(SharedAddress(&barriers.values_tail), 1);
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(SharedAddress(&barriers.keys_full[stage]), kFull);
      InitBarrier(SharedAddress(&barriers.values_full[stage]), kFull);
      InitBarrier(SharedAddress(&barriers.keys_empty[stage]), S::kGroups * 4);
      InitBarrier(SharedAddress(&barriers.values_empty[stage]), S::kGroups * 4);
    }
    ShowBarriers();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    GiveRegisters<kCached ? S::kRowRegisters : S::kBoxRegisters>();
    if (warp == 1) {
      WriteTables<T, S>(call, memory);
    } else if (warp == 0 || kCached) {
      HopperCopier<T, S, kCached>(call, maps, memory).Run();
    }
  } else {
    TakeRegisters<S::template kComputeRegisters<kCached>>();
    HopperGroup<T, S, kCached>(call, memory, warp / 4 - 1).Run();
  }
#endif
}

template <typename T, typename S, bool kCached>
void LaunchHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  Device& device = stream.device();
  constexpr int kSharedBytes = sizeof(HopperMemory<T, S>);
  const auto kernel = AttendHopperKernel<T, S, kCached>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (!QT_CUDA(device, allowed)) return;
  HopperMaps maps{};
  const auto encode = [&](const void* data, int64_t rows, int64_t row, int64_t head, int box_rows,
                          CUtensorMap* map) {
    return EncodeBoxes({data, rows, call.heads, call.head_dim, row, head}, box_rows, device, map);
  };
  if (!encode(call.q, call.q_rows, call.q_row, call.q_head, S::kRows, &maps.q)) return;
  if (!kCached && (!encode(call.k, call.k_rows, call.k_row, call.k_head, S::kKeys, &maps.k) ||
                   !encode(call.v, call.k_rows, call.v_row, call.v_head, S::kKeys, &maps.v))) {
    return;
  }
  const int64_t works = MostQueryBlocks(rows_total, call.sequences, S::kRows) * call.heads;
  const int64_t blocks = std::min<int64_t>(works, device.multiprocessors());
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), kSharedBytes, kernel, call,
         maps);
}

}  // namespace

template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  const bool cached = call.kv_lens != nullptr;
  if (call.head_dim <= 64) {
    cached ? LaunchHopper<T, HopperSizes<64, 2, 128, 2, true>, true>(call, rows_total, stream)
           : LaunchHopper<T, HopperSizes<64, 3, 128, 2, true>, false>(call, rows_total, stream);
  } else {
    using S = HopperSizes<128, 2, 128, 2, true>;
    cached ? LaunchHopper<T, S, true>(call, rows_total, stream)
           : LaunchHopper<T, S, false>(call, rows_total, stream);
  }
}
template void AttendHopper<__nv_bfloat16>(const AttentionCall&, int64_t, Stream&);
template void AttendHopper<__half>(const AttentionCall&, int64_t, Stream&);

}  // namespace quintet::cuda
