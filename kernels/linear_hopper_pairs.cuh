// Gated products of 65 to 128 rows on Hopper: the kernel, and what its launcher and it share.
#pragma once

#include "kernels/linear_hopper.cuh"

namespace quintet::cuda {

struct HopperPairsSizes {
  static constexpr int kRows = 64, kChannels = 160;  // rows of x, of W
  static constexpr int kOwn = kChannels / 2;  // gate or up channels: of a warpgroup, of a copy
  static constexpr bool kHalves = false;
  static constexpr int kFinish = 2 * kWarpgroup, kThreads = kFinish + 64;  // multiply; and copy
  static constexpr int kWBytes = kChannels * 128, kXBytes = kRows * 128;
  static constexpr int kWStages = 8, kXStages = 7;
  // From a row of sums to the next: stores of fragments meet no bank twice.
  static constexpr int kPitchBytes = (kChannels + 8) * 4;
};

// What lies where in a block's shared memory, in bytes: the ring of x from 0 on, then that of W,
// and the sums over them when they have been read.
struct HopperPairsLayout {
  using S = HopperPairsSizes;
  static constexpr int each = S::kRows, received = 0, residual = 0, scales = 0;
  static constexpr int weights = S::kXStages * S::kXBytes;
  static constexpr int tail = weights + S::kWStages * S::kWBytes;
  struct Tail {
    uint64_t w_full[S::kWStages], w_empty[S::kWStages], x_full[S::kXStages], x_empty[S::kXStages];
  };
  static constexpr int bytes = tail + sizeof(Tail);
  static_assert(S::kRows * S::kPitchBytes <= tail);
};

// A block's work: one half of the tile's rows.
struct HopperPairsShare {
  static constexpr int splits = 1, rank = 0, channels = HopperPairsSizes::kOwn;
  int half;
  int column;  // first of y
  int row, rows;
  int count;  // stages

  __device__ __forceinline__ explicit HopperPairsShare(const HopperRowsArgs& a)
      : half(ClusterRank()),
        column(static_cast<int>(blockIdx.x) / 2 * channels),
        row(half * HopperPairsSizes::kRows),
        rows(max(0, min(HopperPairsSizes::kRows, a.rows - row))),
        count((a.k + kHopperDepth - 1) / kHopperDepth) {}
};

// A box to the same place of both blocks; barriers in the same place learn of it.
__device__ __forceinline__ void CopyBoxToPair(uint32_t shared, const CUtensorMap& map, int channel,
                                              int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :
      : "r"(shared), "l"(&map), "r"(channel), "r"(0), "r"(row), "r"(barrier),
        "h"(static_cast<uint16_t>(3))
      : "memory");
}

// Asks for boxes of 64 values of k: of W and of x each one thread.
class HopperPairsCopier {
  using S = HopperPairsSizes;
  using Tail = HopperPairsLayout::Tail;

 public:
  __device__ __forceinline__ HopperPairsCopier(const HopperRowsArgs& a, const HopperRowsMaps& maps,
                                               const HopperPairsShare& share, uint32_t shared,
                                               Tail& tail)
      : a_(a), maps_(maps), share_(share), shared_(shared), tail_(tail) {}

  __device__ __forceinline__ void Begin() const {
    constexpr int kWarps = S::kFinish / 32;
    for (int stage = 0; stage < S::kWStages; ++stage) {
      InitBarrier(SharedAddress(&tail_.w_full[stage]), 1);
      InitBarrier(SharedAddress(&tail_.w_empty[stage]), 2 * kWarps);  // both blocks have read it
    }
    for (int stage = 0; stage < S::kXStages; ++stage) {
      InitBarrier(SharedAddress(&tail_.x_full[stage]), 1);
      InitBarrier(SharedAddress(&tail_.x_empty[stage]), kWarps);
    }
    ShowBarriers();
  }

  // W, which no kernel writes: gate channels by one block, up channels by the other.
  __device__ __forceinline__ void RunWeights() const {
    const int first = share_.column + share_.half * a_.up_offset;
    const uint32_t ring = shared_ + HopperPairsLayout::weights + share_.half * S::kOwn * 128;
    RingPlace<S::kWStages> place;
    for (int i = 0; i < share_.count; ++i) {
      const uint32_t full = SharedAddress(&tail_.w_full[place.stage]);
      Wait(SharedAddress(&tail_.w_empty[place.stage]), place.parity ^ 1);
      ArriveExpecting(full, S::kWBytes);
      CopyBoxToPair(ring + place.stage * S::kWBytes, maps_.w, i * kHopperDepth, first, full);
      place.Advance();
    }
  }

  __device__ __forceinline__ void RunRows() const {
    WaitForKernelsBefore();
    RingPlace<S::kXStages> place;
    for (int i = 0; i < share_.count; ++i) {
      const uint32_t full = SharedAddress(&tail_.x_full[place.stage]);
      Wait(SharedAddress(&tail_.x_empty[place.stage]), place.parity ^ 1);
      ArriveExpecting(full, S::kXBytes);
      CopyBox(shared_ + place.stage * S::kXBytes, maps_.x, i * kHopperDepth, 0, share_.row, full);
      place.Advance();
      if (i + 1 == min(S::kXStages, share_.count)) LetNextBegin();
    }
  }

 private:
  const HopperRowsArgs& a_;
  const HopperRowsMaps& maps_;
  const HopperPairsShare& share_;
  const uint32_t shared_;
  Tail& tail_;
};

// c += x W^T in a warpgroup: 64 rows by kOwn channels.
template <typename T>
__device__ __forceinline__ void SumPairs(const HopperPairsShare& share, uint32_t shared,
                                         HopperPairsLayout::Tail& tail,
                                         float (&c)[HopperPairsSizes::kOwn / 8][4]) {
  using S = HopperPairsSizes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t weights = shared + HopperPairsLayout::weights +
                           static_cast<int>(threadIdx.x) / kWarpgroup * S::kOwn * 128;
  const uint32_t w_empty = InBlock(SharedAddress(tail.w_empty), lane % 2);
  RingPlace<S::kWStages> w_place;
  RingPlace<S::kXStages> x_place;
  int w_before = 0, x_before = 0;
  Pin(c);
  for (int i = 0; i < share.count; ++i) {
    Wait(SharedAddress(&tail.w_full[w_place.stage]), w_place.parity);
    Wait(SharedAddress(&tail.x_full[x_place.stage]), x_place.parity);
    const uint64_t w = Describe(weights + w_place.stage * S::kWBytes, 16);
    const uint64_t x = Describe(shared + x_place.stage * S::kXBytes, 16);
    BeginProducts();
#pragma unroll
    for (int part = 0; part < kHopperDepth / 16; ++part) {
      Wgmma<T>(c, x + part * 2, w + part * 2, true);
    }
    CommitProducts();
    WaitForProducts<1>();
    if (i > 0) {
      if (lane == 0) Arrive(SharedAddress(&tail.x_empty[x_before]));
      if (lane < 2) ArriveInCluster(w_empty + w_before * 8);
    }
    w_before = w_place.stage, x_before = x_place.stage;
    w_place.Advance();
    x_place.Advance();
  }
  WaitForProducts<0>();
  Pin(c);
}

// What: y = activation(alpha x G^T + bias) * (alpha x U^T + bias), W = [G; U].
// Shapes: x [65 to 128 rows, k] T, W [2 columns, k] T, y [rows, columns] f32 or T; as in
// HopperRowsKernel otherwise. Math: products on tensor cores, f32 sums over k in ascending order.
// Map: a pair of blocks (a cluster) has 80 gate channels and their up channels, a block half of the
// rows: each copies half of W's boxes to both. Rows of x are the rows of the tensor cores' tiles;
// one warpgroup has the gates, the other the ups. Two threads ask for boxes of 64 values of k: one
// for W's, before the kernel waits for its inputs, one for x's. Bound: as HopperRowsKernel. On an
// H200, bf16, 10240x2048 with weights from memory: 42 MB, 9.8 us at 4.3 TB/s; predicted 12 us, seen
// 15.2 where cuBLASLt and the pass after it take 16.6. Flan-T5-XL, one program without and with it:
// encode of 128 tokens 1.48 and 1.45 ms, a step of 128 rows 4.07 and 4.01 ms.
// Spec: tests/kernels/linear_many_test.cc.
template <typename T>
__global__ void __launch_bounds__(HopperPairsSizes::kThreads, 1)
    HopperPairsKernel(const __grid_constant__ HopperRowsArgs a,
                      const __grid_constant__ HopperRowsMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = HopperPairsSizes;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const HopperPairsShare share(a);
  auto& tail = *reinterpret_cast<HopperPairsLayout::Tail*>(memory + HopperPairsLayout::tail);
  const HopperPairsCopier copier(a, maps, share, shared, tail);
  constexpr int kCopiesWeights = S::kFinish, kCopiesRows = S::kFinish + 32;  // threads
  if (thread == kCopiesWeights) {
    AskForMap(maps.w);
    copier.Begin();
  }
  if (thread == kCopiesRows) AskForMap(maps.x);
  __syncthreads();
  ArriveAtCluster();
  WaitForCluster();  // both blocks' barriers are there

  if (warp >= S::kFinish / 32) {
    if (thread == kCopiesWeights) copier.RunWeights();
    if (thread == kCopiesRows) copier.RunRows();
    __syncwarp();
  } else {
    HopperRowsFinish<T, S, HopperPairsShare, HopperPairsLayout> finish(a, share, {}, shared,
                                                                       thread);
    WaitForKernelsBefore();
    float sums[S::kOwn / 8][4] = {};
    SumPairs<T>(share, shared, tail, sums);
    SyncThreads(1, S::kFinish);  // nobody reads the rings any more: sums [row][channel] go there
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = warp % 4 * 16 + lane / 4 + e * 8;
      unsigned char* to = memory + row * S::kPitchBytes + (warp / 4 * S::kOwn + lane % 4 * 2) * 4;
#pragma unroll
      for (int j = 0; j < S::kOwn / 8; ++j) {
        *reinterpret_cast<float2*>(to + j * 32) = {sums[j][e * 2], sums[j][e * 2 + 1]};
      }
    }
    SyncThreads(1, S::kFinish);
    finish.Run(nullptr);
  }
  ArriveAtCluster();
  WaitForCluster();  // the other block may still copy to this one, or arrive at its barriers
#endif
}

// Whether the kernel is faster than cuBLASLt: one block for nearly every multiprocessor. And the
// product, of which RunHopperRows says what it takes.
bool HopperPairsFit(const LinearWeight& w, int64_t rows, const Device& device);
void LaunchHopperPairs(const LinearArgs& args, Stream& stream);

}  // namespace quintet::cuda
