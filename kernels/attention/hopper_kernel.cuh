// The Hopper attention kernel and its launcher, included by the files that instantiate it.
#pragma once

#include "kernels/attention/hopper_consumer.cuh"
#include "kernels/attention/hopper_producer.cuh"

namespace quintet::cuda {

// out = softmax(scale q k^T + bias + mask) v for all heads of all sequences.
// Shapes: q, out [rows, heads, head_dim]; k, v rows of head_dim values, 16-byte aligned; head_dim
// <= kDim; T is bf16 or f16. Bias: none, ALiBi, FIRE, or a table that is constant, on either side,
// from distance kHopperSaturation on.
// Math: wgmma with f32 accumulators; online softmax in f32; P rounded to T. Row sums are sums of
// the rounded P, except in kernels that have two consumer warpgroups and neither ALiBi nor FIRE:
// those sum the unrounded P.
// Mapping: persistent, one CTA per SM; work tiles (64 queries per consumer warpgroup x 1 head) are
// assigned statically in zig-zag order (AttentionTileScheduler). Warpgroup 0 is the producer. Its
// warp 0 issues the TMA loads and writes the logarithms of FIRE's distances; with a paged cache, Q
// is still loaded by TMA, but kGatherWarps warps gather the rows of K and V with cp.async. Its warp
// 1 writes the bias table of the next work tile. A consumer warpgroup overlaps the Q K^T GEMM of a
// tile with the P V GEMM of the previous one; consumer warpgroups alternate GEMM and softmax
// (ping-pong).
// Bound: 4 * rows * kv_len * head_dim FLOP per head at 790 TFLOP/s (H200); at head_dim 64 the
// exponentials take as long as the GEMMs.
// Test: tests/kernels/attention/attention_test.cc, attention/mask_test.cc. History:
// attention/NOTES.md.
template <typename T, typename S, bool kCached, BiasKind kFunction>
__global__ void __launch_bounds__(S::kThreads, 1)
    AttendHopperKernel(const __grid_constant__ AttentionCall call,
                       const __grid_constant__ HopperTensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = HopperSharedMemory<T, S, kFunction>;
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  WaitOnDependentGrids();
  HopperBarriers<S::kStages>& barriers = memory.barriers;
  constexpr int kFull = kCached ? kGatherWarps * 32 + 1 : 1;
  const int with_columns = call.mask_tiles == nullptr ? 0 : 32;
  constexpr int kWithStrip = Memory::kFire ? 32 : 0;
  FillMissingColumns<S>(call, memory);
  if (threadIdx.x < kSortedSequences) {
    memory.sequences[threadIdx.x] = TilesOf<S>(call, static_cast<int>(threadIdx.x));
  }
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < static_cast<int>(sizeof(memory.ones) / sizeof(T)); i += S::kThreads) {
    memory.ones[i] = static_cast<T>(1.0f);
  }
  if constexpr (Memory::kAlibi) {
    auto& keys = memory.alibi.keys;
    for (int i = thread; i < static_cast<int>(sizeof(keys) / sizeof(T)); i += S::kThreads) {
      keys[i] = static_cast<T>(i % 8 < 3 ? static_cast<float>(i / 8) : 0.0f);
    }
  }
  FenceViewAsyncShared();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      // The mbarrier queries_full waits for 33 arrivals per work tile: one from the thread that
      // issues the TMA loads of Q, and one from each of the 32 lanes of warp 1, which writes the
      // bias table.
      BarrierInit(SharedAddress(&barriers.queries_full[stage]), 1 + 32);
      BarrierInit(SharedAddress(&barriers.queries_empty[stage]), S::kConsumers * kWarpgroup);
    }
    BarrierInit(SharedAddress(&barriers.values_tail), 1);
    for (int stage = 0; stage < S::kStages; ++stage) {
      BarrierInit(SharedAddress(&barriers.keys_full[stage]), kFull + kWithStrip + with_columns);
      BarrierInit(SharedAddress(&barriers.values_full[stage]), kFull);
      BarrierInit(SharedAddress(&barriers.keys_empty[stage]), S::kConsumers * kWarpgroup);
      BarrierInit(SharedAddress(&barriers.values_empty[stage]), S::kConsumers * kWarpgroup);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    WarpgroupRegDealloc<kCached ? S::kGatherRegisters : S::kTmaRegisters>();
    if (warp == 1) {
      WriteTables<T, S>(call, memory);
    } else if (warp == 0 || kCached) {
      HopperProducer<T, S, Memory, kCached>(call, maps, memory).Run();
    }
  } else {
    WarpgroupRegAlloc<S::template kConsumerRegisters<kCached>>();
    HopperConsumer<T, S, kCached, kFunction>(call, memory, warp / 4 - 1).Run();
  }
#endif
}

template <typename T, typename S, bool kCached, BiasKind kFunction>
void LaunchHopper(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  constexpr int kSharedBytes = sizeof(HopperSharedMemory<T, S, kFunction>);
  static_assert(kSharedBytes <= 227 * 1024);
  HopperTensorMaps maps{};
  const auto encode = [&](const void* data, int64_t rows, int64_t row, int64_t head, int box_rows,
                          CUtensorMap* map) {
    return MakeTensorMap({data, rows, call.heads, call.head_dim, row, head}, box_rows, stream, map);
  };
  if (!encode(call.q, call.q_rows, call.q_row, call.q_head, S::kRows, &maps.q)) return;
  if (!kCached && (!encode(call.k, call.k_rows, call.k_row, call.k_head, S::kKeys, &maps.k) ||
                   !encode(call.v, call.k_rows, call.v_row, call.v_head, S::kKeys, &maps.v))) {
    return;
  }
  const int64_t work_tiles = MaxQueryTiles(rows_total, call.sequences, S::kRows) * call.heads;
  const int64_t blocks = std::min<int64_t>(work_tiles, stream.num_sms());
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), kSharedBytes,
         AttendHopperKernel<T, S, kCached, kFunction>, call, maps);
}

// Launches the instantiation for the call's head_dim and for packed or cached keys.
template <typename T, BiasKind kFunction>
void LaunchHopperForShape(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  const bool cached = call.kv_lens != nullptr;
  if (call.head_dim <= 64) {
    using Cached = HopperTraits<64, 2, 128, 2, true>;
    using Packed = HopperTraits<64, 3, 128, 2, true>;
    cached ? LaunchHopper<T, Cached, true, kFunction>(call, rows_total, stream)
           : LaunchHopper<T, Packed, false, kFunction>(call, rows_total, stream);
  } else {
    using S = HopperTraits<128, 2, 128, 2, true>;
    cached ? LaunchHopper<T, S, true, kFunction>(call, rows_total, stream)
           : LaunchHopper<T, S, false, kFunction>(call, rows_total, stream);
  }
}

}  // namespace quintet::cuda
