// Products of tens to some hundreds of rows on Hopper: the kernel, and what its launcher and it
// share.
#pragma once

#include "kernels/bulk_copy.cuh"
#include "kernels/linear_hopper_finish.cuh"

namespace quintet::cuda {

// How a product is cut: tiles of 64 channels by `rows` rows (16, 32 or 64), each summed by `splits`
// blocks (a cluster) over their shares of k, through a ring of `stages`.
struct HopperPlan {
  int rows, splits, stages;
};

// Boxes of W and of x.
struct HopperRowsMaps {
  CUtensorMap w, x;
};

// Shared memory to a block of the cluster, whose `barrier` learns of its bytes.
__device__ __forceinline__ void CopyToBlock(uint32_t there, uint32_t from, int bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];"
      :
      : "r"(there), "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Asks for boxes of a block's share: one thread, or one for W and one for x. A stage's bytes are
// expected with W's; x's may be there before.
template <typename S>
class HopperRowsCopier {
  using Tail = HopperRowsLayout::Tail;

 public:
  __device__ __forceinline__ HopperRowsCopier(const HopperRowsArgs& a, const HopperRowsMaps& maps,
                                              const HopperShare<S>& share, uint32_t ring,
                                              Tail& tail)
      : a_(a), maps_(maps), share_(share), ring_(ring), tail_(tail) {}

  // One thread. `received_bytes` are those of sums.
  __device__ __forceinline__ void Begin(int received_bytes) const {
    for (int stage = 0; stage < a_.stages; ++stage) {
      InitBarrier(SharedAddress(&tail_.full[stage]), 1);
      InitBarrier(SharedAddress(&tail_.empty[stage]), kWarpgroup / 32);
    }
    InitBarrier(SharedAddress(&tail_.received), 1);
    ShowBarriers();
    if constexpr (!S::kTwoCopy) {
      for (int i = 0; i < First(); ++i) CopyWeights(i, i);
    }
    ArriveExpecting(SharedAddress(&tail_.received), received_bytes);
  }

  // After Begin, which has asked for the first stages of W; no kernel writes W.
  __device__ __forceinline__ void RunBoth() const {
    WaitForKernelsBefore();
    for (int i = 0; i < First(); ++i) CopyRows(i, i);
    LetNextBegin();
    Run(First(), [&](int i, int stage) {
      CopyWeights(i, stage);
      CopyRows(i, stage);
    });
  }
  __device__ __forceinline__ void RunWeights() const {
    Run(0, [&](int i, int stage) { CopyWeights(i, stage); });
  }
  __device__ __forceinline__ void RunRows() const {
    WaitForKernelsBefore();
    Run(0, [&](int i, int stage) {
      CopyRows(i, stage);
      if (i + 1 == First()) LetNextBegin();
    });
  }

 private:
  __device__ __forceinline__ int First() const { return min(share_.count, a_.stages); }
  // copy(i, its place) once the place is free, from i = begin on: 0 or First().
  template <typename Copy>
  __device__ __forceinline__ void Run(int begin, const Copy& copy) const {
    int stage = 0;
    uint32_t parity = begin == 0 ? 1 : 0;  // a barrier that was never used has ended phase 1
    for (int i = begin; i < share_.count; ++i) {
      Wait(SharedAddress(&tail_.empty[stage]), parity);
      copy(i, stage);
      if (++stage == a_.stages) stage = 0, parity ^= 1;
    }
  }
  __device__ __forceinline__ void CopyWeights(int i, int stage) const {
    const uint32_t full = SharedAddress(&tail_.full[stage]), to = ring_ + stage * S::kStageBytes;
    const int k = (share_.begin + i) * kHopperDepth;
    ArriveExpecting(full, S::kStageBytes);
    CopyBox(to, maps_.w, k, 0, share_.column, full);
    if (!S::kAdds && a_.up_offset > 0) {
      CopyBox(to + S::kWBytes / 2, maps_.w, k, 0, a_.up_offset + share_.column, full);
    }
  }
  __device__ __forceinline__ void CopyRows(int i, int stage) const {
    CopyBox(ring_ + stage * S::kStageBytes + S::kWBytes, maps_.x, (share_.begin + i) * kHopperDepth,
            0, share_.row, SharedAddress(&tail_.full[stage]));
  }

  const HopperRowsArgs& a_;
  const HopperRowsMaps& maps_;
  const HopperShare<S>& share_;
  const uint32_t ring_;
  Tail& tail_;
};

// c += W x^T over a block's share of k, in a warpgroup; c [64 channels x kRows].
template <typename T, typename S>
__device__ __forceinline__ void SumShare(const HopperShare<S>& share, int stages, uint32_t ring,
                                         HopperRowsLayout::Tail& tail,
                                         float (&c)[S::kRows / 8][4]) {
  int stage = 0, before = 0;
  uint32_t parity = 0;
  Pin(c);
  for (int i = 0; i < share.count; ++i) {
    Wait(SharedAddress(&tail.full[stage]), parity);
    const uint32_t at = ring + stage * S::kStageBytes;
    const uint64_t w = Describe(at, 16);
    const uint64_t x = Describe(at + S::kWBytes, 16);
    BeginProducts();
#pragma unroll
    for (int part = 0; part < kHopperDepth / 16; ++part) {
      Wgmma<T>(c, w + part * 2, x + part * 2, true);
    }
    CommitProducts();
    WaitForProducts<1>();
    if (i > 0 && threadIdx.x % 32 == 0) Arrive(SharedAddress(&tail.empty[before]));
    before = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  WaitForProducts<0>();
  Pin(c);
}

// What: y = activation(alpha x W^T + bias) [* up] + residual; or keys and values to their slots; or
// halves of norms (NormOutput, x_squares).
// Shapes: x [rows, k] T, W [n, k] T, y [rows, columns] f32 or T; k a multiple of 8, columns and
// what is between rows multiples of 4.
// Math: products on tensor cores, f32 sums: each block's share of k in ascending order, then the
// blocks' in theirs, the same bits from run to run.
// Map: channels of W are the rows of the tensor cores' tiles (64 for each warpgroup; gated: a half
// of gate channels and the up channels that belong to them), rows of x their columns. A cluster of
// blocks owns a tile of y, each block a share of k. Boxes of 64 values of k come into a ring: W's
// before the kernel waits for its inputs, x's after that. In the end every block sends its sums to
// those that finish their rows, a share of the tile's each.
// Bound: W read once: n k 2 bytes over 4.3 TB/s on an H200; x once for every tile of channels, from
// the L2 cache. In a step, the chain of kernels.
// Spec: tests/kernels/linear_test.cc, linear_norm_test.cc, linear_half_norm_test.cc.
//
// Versions on an H200, bf16, us of a product among others of its kind, weights from memory, at 32 |
// 128 rows. T5-base: 768x768 with a residual, 2304x768, 3072x768 with ReLU, 768x3072 with a
// residual; by cuBLASLt 4.0 4.1 4.3 7.0 | 4.1 4.3 4.7 7.3 and 1.4 for keys and values after the
// second.
//   1 tiles of 64 or 128 channels by 8 to 128 rows, 1 to 8 blocks a cluster, the best of all plans:
//     predicted 3 to 3.5 each, seen 2.2 2.7 3.2 3.0 | 2.8 4.1 5.0 5.0: a row was finished after the
//     other, which is why tiles of many rows were slow.
//   2 four rows at once: predicted 2 less for a tile of 128 rows, seen 1.5 less; best plans 2.3 2.8
//     3.1 3.2 | 2.8 3.6 4.0 4.9. Tiles of 128 or 192 channels or of 128 rows are not better where
//     this is better than cuBLASLt, and gone. GELU without a branch: 3072x768 5.4 before, 4.5 now.
//     Flan-T5-XL at 32 | 64 rows: 6144x2048 8.1 | 9.1, cuBLASLt 9.5 | 9.3; 2048x2048 3.9 | 4.4 of
//     6.2 | 6.1; gated 10240x2048 14.1 | 15.4 of 14.9 | 16.5; 2048x5120 7.9 | 8.9 of 10.5 | 10.7.
//     A recorded step by bench_steps_gpu without and with these kernels, at 16 | 32 | 64 | 128
//     rows: T5-base 444 | 545 | 704 | 878, then 376 | 436 | 594 | 781; GPT-2 369 | 421 | 560 | 722,
//     then 320 | 333 | 453 | 613; Flan-T5-XL 1762 | 2120 | 2612 | 3528, then 1529 | 1787 | 2334 |
//     3468.
//   3 halves of norms (NormOutput): predicted 344 for T5-base's step and 1434 for Flan-T5-XL's at
//     32 rows; seen in one run, without and with: T5-base 351 | 400 | 494 | 653, then 310 | 356 |
//     469 | 652; Flan-T5-XL 1410 | 1581 | 1979 | 2778, then 1286 | 1467 | 1912 | 2790. At 128 rows
//     of the latter none is halved: when the norm before 2048x2048 was, it took 2814.
//   4 of 65 to 128 rows with large weights, us of a layer of Flan-T5-XL's encoder of 128 tokens in
//     a graph of 24 such layers (a program outside the tree): 52.6 before. 2048x2048 and 2048x5120
//     (by cuBLASLt until then) cut in two along k, a thread for W and one for x instead of one for
//     both, and the last versions of linear_hopper_pairs.cuh and attention_short.cu: predicted 48,
//     seen 49.7. Rings of 128 KiB instead of 192, so that blocks of the next kernel find
//     room: 48.5. A kernel without the code for what T5 never asks (kAdds, and kPlain there): 47.3.
//     Where weights are small one thread remains: T5-base's step of 32 rows 397, by two threads
//     410, of 128 rows 727 and 734; where they are large two are better: Flan-T5-XL's of 32 rows
//     1734, by two 1717.
//
// Where the time of version 4 is, by clocks in the kernels: of the gated product's 14 us 10 are
// products, which run as fast as their weights arrive; the rest, and half of most other kernels, is
// what comes before the first product and after the last one, once and from code that is fetched
// anew where 96 MB of weights go through the L2 cache in between.
//
// Rejected, up to 64 rows:
//   - the next kernel let in before the wait (T5-base 453 | 806 at 32 | 128 rows), after the last
//     copy (437 | 792), at the end (484 | 821);
//   - sums fetched by who finishes their rows (ld.shared::cluster) instead of sent by bulk copies:
//     T5-base's step of 32 rows 406, then 445, of which other changes of that build were 7.
// Rejected, 128 to 512 rows: rows of x as the tensor cores' rows, tiles of 48 to 160 channels by
// 128 rows, 1 to 8 blocks a share of k, x by one copy for 1 to 8 blocks. An arrival with
// release.cluster at each stage is a fence, under which nothing overlaps; without it the best plans
// take 1.1 us of 17.4 from the gated product and 0.6 of 12.4 from 2048x5120 in such a chain, and
// are slower at 256 rows and on T5-base's shapes.
// Rejected, 128 rows with large weights:
//   - one kernel for what lies between two attentions of a layer, the grid meeting between products
//     while a thread goes on with the next one's weights: predicted 35 to 44 us a layer of 56, seen
//     61 to 70. Some 7 us come to each product: 2 from inputs to the first step, 2 for the
//     exchange, 1 to 5 for finishing, 2 to meet. One that reads and multiplies nothing takes 8 us
//     after another. Of clusters of 4 and 8 blocks with all shared memory 30 and 15 fit: 120 of 132
//     multiprocessors;
//   - weights asked into the L2 cache ahead: 2 to 13 us more a layer;
//   - pairs of blocks (linear_hopper_pairs.cuh) for 6144x2048: a layer takes as long as with
//     cuBLASLt; for 2048x2048 and 2048x5120: 7.3 and 10.4 us alone;
//   - halves of norms around the gated product: as long as with the norm;
//   - a norm that lets the next kernel begin before its own wait, weights marked for the L2 cache
//     by an access policy window: no change;
//   - weights copied with L2::evict_first and a first run of the code that finishes before there is
//     anything to finish: 0.5 us less for the gated product.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    HopperRowsKernel(const __grid_constant__ HopperRowsArgs a,
                     const __grid_constant__ HopperRowsMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const HopperShare<S> share(a);
  const HopperRowsLayout layout = HopperRowsLayout::Of<S>(a, share.splits);
  auto& tail = *reinterpret_cast<HopperRowsLayout::Tail*>(memory + layout.tail);
  constexpr int kCopiesWeights = kWarpgroup, kCopiesRows = kWarpgroup + 32;  // threads
  const int finishes = max(0, min(layout.each, share.rows - share.rank * layout.each));
  const HopperRowsCopier<S> copier(a, maps, share, shared, tail);
  if (thread == kCopiesWeights) {
    AskForMap(maps.w);
    copier.Begin((share.splits - 1) * finishes * S::kPitchBytes);
  }
  if (thread == (S::kTwoCopy ? kCopiesRows : kCopiesWeights)) AskForMap(maps.x);
  __syncthreads();
  const bool splits = share.splits > 1;  // a block of a launch without clusters has none to meet
  if (splits) ArriveAtCluster();         // the barriers are there

  if (warp >= kWarpgroup / 32) {
    if constexpr (S::kTwoCopy) {
      if (thread == kCopiesWeights) copier.RunWeights();
      if (thread == kCopiesRows) copier.RunRows();
    } else {
      if (thread == kCopiesWeights) copier.RunBoth();
    }
    __syncwarp();
    if (splits) WaitForCluster();
  } else {
    HopperRowsFinish<T, S> finish(a, share, layout, shared, thread);
    WaitForKernelsBefore();
    finish.AskForResidual();
    finish.FinishNorm(thread, finishes);
    if (!S::kAdds && a.cache != nullptr && thread < share.rows) {
      tail.row_slot[thread] = RowSlot(a, share.row + thread);
    }
    float sums[S::kRows / 8][4] = {};
    SumShare<T, S>(share, a.stages, shared, tail, sums);

    // Nobody reads the ring any more once all are here: sums [row][channel] go there, those of the
    // rows that this block finishes to where the other blocks send theirs.
    SyncThreads(1, kWarpgroup);
    const int first_own = splits ? share.rank * layout.each : S::kRows;
    const int channel = warp * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = j * 8 + thread % 4 * 2 + e % 2;
        const bool own = row >= first_own && row < first_own + layout.each;
        float* to =
            reinterpret_cast<float*>(memory + (own ? layout.received : 0) + row * S::kPitchBytes);
        to[channel + e / 2 * 8] = sums[j][e];
      }
    }
    if (splits) ShowToAsyncProxy();
    SyncThreads(1, kWarpgroup);
    if (splits) {
      WaitForCluster();
      if (thread < share.splits && thread != share.rank) {
        const int begin = thread * layout.each;
        const int rows = min(layout.each, share.rows - begin);
        const int to = layout.received + share.rank * layout.each * S::kPitchBytes;
        if (rows > 0) {
          CopyToBlock(InBlock(shared + to, thread), shared + begin * S::kPitchBytes,
                      rows * S::kPitchBytes, InBlock(SharedAddress(&tail.received), thread));
        }
      }
      Wait(SharedAddress(&tail.received), 0);
    }
    finish.Run(tail.row_slot);
  }
  if (splits) {
    ArriveAtCluster();
    WaitForCluster();  // others may still be reading this block's sums
  }
#endif
}

// What the kernels of a product are given; without `stages`.
HopperRowsArgs HopperArgsOf(const LinearArgs& args, Stream& stream);

// The product by this plan; RunHopperRows says which it takes.
void LaunchHopperRows(const LinearArgs& args, const HopperPlan& plan, Stream& stream);

}  // namespace quintet::cuda
