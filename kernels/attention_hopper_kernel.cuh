// The Hopper attention kernel and its launcher, for the files that instantiate it.
#pragma once

#include "kernels/attention_hopper_copy.cuh"
#include "kernels/attention_hopper_group.cuh"

namespace quintet::cuda {

// What: out = softmax(scale q k^T + bias + mask) v, all heads of all sequences.
// Shapes: q, out [rows, heads, head_dim], k, v rows of head_dim values at 16-byte addresses,
// head_dim up to kDim; T is bf16 or f16.
// Math: as attention_tiled.cu; no bias, a table that saturates by kHopperSaturation, ALiBi or FIRE,
// whose weights are added up as they are rounded.
// Map: as many blocks as multiprocessors; works (64 queries for each warpgroup that computes, one
// head) are dealt to them in advance, to and fro. Of warpgroup 0, one warp asks for boxes of packed
// queries, keys and values ahead of need (keys in a cache: three warps copy them row by row) and
// writes the logarithms of a tile's distances for FIRE, one writes the next work's bias by
// distance. The others keep scores, weights and sums in registers: while the tensor cores score a
// tile and add the values of the one before it, another warpgroup is in its softmax; they queue
// their products by turns.
// Bound: 4 rows kv_len head_dim FLOP against 790 TFLOP/s on an H200; at head_dim 64 the
// exponentials take as long as the products.
// Spec: tests/kernels/attention_test.cc, attention_mask_test.cc.
//
// Versions on an H200, bf16, 16 heads, 16384 tokens in all, TFLOP/s at head_dim 64 and 128:
//   1 keys by cp.async, a block a work: 352, 428 in one sequence (attention_tiled.cu 227, 230).
//   2 boxes, persistent blocks, turns: predicted 430, 560, seen 506, 585. Rejected: at 64 no turns
//     497, 128 queries 450; at 128 160 keys 600 but 307 at 512, 176 keys 595 but 323.
//   3 queries and tables a work ahead, table read by pairs: predicted 310, 410 at 512 with a
//     table, seen 342, 487; without 383, 514. Causal sequences of 2048: 362, 367 with a table.
//   4 works dealt by the keys that they see, tiles passed by, masks by columns: predicted 410 for
//     causal 2048 with a table, seen 377, 419; random eviction takes a quarter of the time, 64
//     sequences of 16 to 512 tokens 86 us for 94. ALiBi from the table on: 372 at 64, 2048
//     (attention_tiled.cu 180), 217 with FIRE's code beside it. Rejected: the bias under the
//     products, or added after them from entries of four: predicted 0.97 of the speed without one
//     at 64, 2048, seen 0.93 and 0.89; as now, by pairs, 0.92 (version 3: 0.94).
//   5 what a tile needs is decided before its scores are there, pairs of the table are asked for by
//     then; at 128 softmax and values overlap (ptxas had moved the wait up before the softmax);
//     every lane says that it is done. Predicted 0.95 of the speed without a bias everywhere; with
//     T5's buckets, which saturate at 91, seen at 64, 2048 446 of 478 (version 4 in the same run
//     432 of 465), at 64, 16384 489 of 494 (468 of 486), causal 2048 392 of 404 (357 of 372), at
//     128, 2048 547 of 565 (539 of 558). ALiBi as a straight line, its weights added up by the
//     tensor cores: 405 (376). FIRE with its logarithms once a warp and its segments once 32 keys:
//     predicted 290, seen 207, 319 at 128 (92, 165). Rejected: overlap at 64, predicted 520, seen
//     457 to 472; the bias as a factor of weights: predicted 0.97, seen 0.91; rows flat by warps:
//     no change.
//   6 at 64 with three warpgroups a tile's largest scores are looked for only where a weight would
//     come to 2 (attention_hopper_softmax.cuh), sums are a column of ones beside the values, what
//     is far from the diagonal in a tile is not looked up, ALiBi is one more step of the product,
//     its diagonal's tile first. A warpgroup waited for its own chain of instructions, not for a
//     unit: a tile took 1600 of 2800 clocks in its softmax, 64 exponentials of a warp need 512.
//     Predicted 600 without a bias, 0.96 of it with a table, 510 with ALiBi; at 64, 2048 seen 532
//     (version 5 in the same run 495), 510 with T5's table (462), 485 with ALiBi (402); at 512 402
//     (398), 344 (331); at 8192 525 (507), 524 (499), 500 (406); causal 2048 389 (395), 381 (384),
//     363 (344). Rejected: sums not multiplied where bases stay, alone: predicted 1.05, seen 0.97;
//     parts of tiles near the diagonal, alone: predicted 0.97 of the speed without a bias, seen
//     0.93; the same at 128, where no overlap is left: 602 at 2048, but 445 for 498 at 512; the
//     next tile's keys waited for before the weights: 519, 479 with a table, 371 at 512; three
//     stages, two warpgroups (449), no turns (489).
//   7 FIRE: for each 32 keys of a tile it is known which knots of the network a warp's queries
//     pass; elsewhere its bias is one line of a distance's logarithm, which the warp that copies
//     writes once for all. Products of scores begin with it, at 128 while values are being added;
//     three warpgroups at 64. Predicted 420 at 64, 2048, 450 at 8192, 490 at 128, 2048; seen 345,
//     421 and 395 to 453 (version 6 in the same run: 206 at 64, 2048, 312 at 128, 2048; 517 to 533
//     and 570 without a bias), causal 2048 261, 372. An instruction more for each score costs as
//     much wherever it is: 511 with all but the bias itself, 370 with a line for all keys.
//     Rejected: the bias after the products: 321, 410, 422; at 64 while values are being added:
//     326, 408; two warpgroups at 64: 270; logarithms by each warp: 287, 344; no turns: 344, 417,
//     426.
template <typename T, typename S, bool kCached, BiasKind kFunction>
__global__ void __launch_bounds__(S::kThreads, 1)
    AttendHopperKernel(const __grid_constant__ AttentionCall call,
                       const __grid_constant__ HopperMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  using Memory = HopperMemory<T, S, kFunction>;
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  WaitForInputs();
  HopperBarriers<S::kStages>& barriers = memory.barriers;
  constexpr int kFull = kCached ? kCacheWarps * 32 + 1 : 1;
  const int with_columns = call.mask_tiles == nullptr ? 0 : 32;
  constexpr int kWithStrip = Memory::kFire ? 32 : 0;
  FillMissingColumns<S>(call, memory);
  if (threadIdx.x < kSortedSequences) {
    memory.sequences[threadIdx.x] = BlocksOf<S>(call, static_cast<int>(threadIdx.x));
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
  ShowToAsyncProxy();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      InitBarrier(SharedAddress(&barriers.queries_full[stage]), 1 + 32);  // boxes; a lane each
      InitBarrier(SharedAddress(&barriers.queries_empty[stage]), S::kGroups * kWarpgroup);
    }
    InitBarrier(SharedAddress(&barriers.values_tail), 1);
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(SharedAddress(&barriers.keys_full[stage]), kFull + kWithStrip + with_columns);
      InitBarrier(SharedAddress(&barriers.values_full[stage]), kFull);
      InitBarrier(SharedAddress(&barriers.keys_empty[stage]), S::kGroups * kWarpgroup);
      InitBarrier(SharedAddress(&barriers.values_empty[stage]), S::kGroups * kWarpgroup);
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
      HopperCopier<T, S, Memory, kCached>(call, maps, memory).Run();
    }
  } else {
    TakeRegisters<S::template kComputeRegisters<kCached>>();
    HopperGroup<T, S, kCached, kFunction>(call, memory, warp / 4 - 1).Run();
  }
#endif
}

template <typename T, typename S, bool kCached, BiasKind kFunction>
void LaunchHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  Device& device = stream.device();
  constexpr int kSharedBytes = sizeof(HopperMemory<T, S, kFunction>);
  static_assert(kSharedBytes <= 227 * 1024);
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
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), kSharedBytes,
         AttendHopperKernel<T, S, kCached, kFunction>, call, maps);
}

}  // namespace quintet::cuda
