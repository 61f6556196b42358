// Gated GEMM for 65 to 128 rows on Hopper (sm_90a), in clusters of two CTAs: the kernel, and the
// types that it shares with its launcher.
#pragma once

#include "kernels/linear/split_k.cuh"

namespace quintet::cuda {

struct TwoCtaGatedTile {
  // Tile of one CTA: rows of x by columns of y.
  static constexpr int kRows = 64, kChannels = 80;
  // Number of gate channels, and also of up channels, that one consumer warpgroup computes. One TMA
  // load of W copies this number of channels.
  static constexpr int kBox = kChannels / 2;
  // Threads of a CTA. kConsumerThreads: two consumer warpgroups; kThreads: these and two producer
  // warps.
  static constexpr int kConsumerThreads = 2 * kWarpgroup, kThreads = kConsumerThreads + 64;
  // Size of a pipeline stage (64 values of k) of W, and of one of x, in bytes.
  static constexpr int kWBytes = 2 * kChannels * 128, kXBytes = kRows * 128;
  static constexpr int kWStages = 8, kXStages = 7;
};

// Byte offsets in the shared memory of a CTA: pipeline buffers of x from 0 on, then those of W,
// then the mbarriers.
struct TwoCtaGatedSmem {
  using S = TwoCtaGatedTile;
  static constexpr int weights = S::kXStages * S::kXBytes;
  static constexpr int tail = weights + S::kWStages * S::kWBytes;
  struct Tail {
    uint64_t w_full[S::kWStages], w_empty[S::kWStages], x_full[S::kXStages], x_empty[S::kXStages];
  };
  static constexpr int bytes = tail + sizeof(Tail);
};

// The work of one CTA: half of the rows of x, for the gate and up channels of its cluster.
struct TwoCtaGatedWork {
  using S = TwoCtaGatedTile;
  int half;
  int column;     // first column of y
  int row, rows;  // first row of y, and rows of this CTA
  int count;      // steps of kSplitKDepth values of k

  __device__ __forceinline__ explicit TwoCtaGatedWork(const SplitKArgs& a)
      : half(ClusterRank()),
        column(static_cast<int>(blockIdx.x) / 2 * S::kChannels),
        row(half * S::kRows),
        rows(max(0, min(S::kRows, a.rows - row))),
        count((a.k + kSplitKDepth - 1) / kSplitKDepth) {}
};

// Producer: one thread loads W and one thread loads x, 64 values of k per pipeline stage.
class TwoCtaGatedProducer {
  using S = TwoCtaGatedTile;
  using Tail = TwoCtaGatedSmem::Tail;

 public:
  __device__ __forceinline__ TwoCtaGatedProducer(const SplitKArgs& a, const SplitKTensorMaps& maps,
                                                 const TwoCtaGatedWork& share, uint32_t shared,
                                                 Tail& tail)
      : a_(a), maps_(maps), share_(share), shared_(shared), tail_(tail) {}

  __device__ __forceinline__ void Begin() const {
    constexpr int kWarps = S::kConsumerThreads / 32;
    for (int stage = 0; stage < S::kWStages; ++stage) {
      BarrierInit(SharedAddress(&tail_.w_full[stage]), 1);
      // A stage of W is free once the consumer warps of both CTAs have released it, because each
      // load of W writes to both CTAs.
      BarrierInit(SharedAddress(&tail_.w_empty[stage]), 2 * kWarps);
    }
    for (int stage = 0; stage < S::kXStages; ++stage) {
      BarrierInit(SharedAddress(&tail_.x_full[stage]), 1);
      BarrierInit(SharedAddress(&tail_.x_empty[stage]), kWarps);
    }
    FenceBarrierInit();
  }

  // Loads W. One CTA loads the gate channels and the other the up channels, and each load goes to
  // both CTAs. No kernel writes W, so the loads need not wait for the previous kernel.
  __device__ __forceinline__ void RunWeights() const {
    const int first = share_.column + share_.half * a_.up_offset;
    const uint32_t ring = shared_ + TwoCtaGatedSmem::weights + share_.half * S::kBox * 128;
    PipelineState<S::kWStages> state;
    for (int i = 0; i < share_.count; ++i) {
      const uint32_t full = SharedAddress(&tail_.w_full[state.stage]);
      const uint32_t to = ring + state.stage * S::kWBytes;
      BarrierWait(SharedAddress(&tail_.w_empty[state.stage]), state.parity ^ 1);
      BarrierArriveExpectTx(full, S::kWBytes);
      TmaLoadMulticast(to, maps_.w, i * kSplitKDepth, first, full);
      TmaLoadMulticast(to + S::kWBytes / 2, maps_.w, i * kSplitKDepth, first + S::kBox, full);
      state.Advance();
    }
  }

  // Loads the rows of x of this CTA, after the previous kernel has finished.
  __device__ __forceinline__ void RunRows() const {
    WaitForKernelsBefore();
    PipelineState<S::kXStages> state;
    for (int i = 0; i < share_.count; ++i) {
      const uint32_t full = SharedAddress(&tail_.x_full[state.stage]);
      BarrierWait(SharedAddress(&tail_.x_empty[state.stage]), state.parity ^ 1);
      BarrierArriveExpectTx(full, S::kXBytes);
      TmaLoad(shared_ + state.stage * S::kXBytes, maps_.x, i * kSplitKDepth, 0, share_.row, full);
      state.Advance();
      if (i + 1 == min(S::kXStages, share_.count)) LaunchDependentGrids();
    }
  }

 private:
  const SplitKArgs& a_;
  const SplitKTensorMaps& maps_;
  const TwoCtaGatedWork& share_;
  const uint32_t shared_;
  Tail& tail_;
};

// Mainloop of a consumer warpgroup: c += x W^T, 64 rows by kBox gate channels and the kBox up
// channels that belong to them.
template <typename T>
__device__ __forceinline__ void TwoCtaGatedMainloop(const TwoCtaGatedWork& share, uint32_t shared,
                                                    TwoCtaGatedSmem::Tail& tail,
                                                    float (&c)[TwoCtaGatedTile::kChannels / 8][4]) {
  using S = TwoCtaGatedTile;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t weights = shared + TwoCtaGatedSmem::weights +
                           static_cast<int>(threadIdx.x) / kWarpgroup * S::kWBytes / 2;
  const uint32_t w_empty = InBlock(SharedAddress(tail.w_empty), lane % 2);
  PipelineState<S::kWStages> w_state;
  PipelineState<S::kXStages> x_state;
  int w_before = 0, x_before = 0;
  WarpgroupFenceOperand(c);
  for (int i = 0; i < share.count; ++i) {
    BarrierWait(SharedAddress(&tail.w_full[w_state.stage]), w_state.parity);
    BarrierWait(SharedAddress(&tail.x_full[x_state.stage]), x_state.parity);
    const uint64_t w = MakeSmemDescriptor(weights + w_state.stage * S::kWBytes, 16);
    const uint64_t x = MakeSmemDescriptor(shared + x_state.stage * S::kXBytes, 16);
    WarpgroupArrive();
#pragma unroll
    for (int part = 0; part < kSplitKDepth / 16; ++part) {
      Wgmma<T>(c, x + part * 2, w + part * 2, true);
    }
    WarpgroupCommitBatch();
    WarpgroupWait<1>();
    if (i > 0) {
      if (lane == 0) BarrierArrive(SharedAddress(&tail.x_empty[x_before]));
      if (lane < 2) ArriveInCluster(w_empty + w_before * 8);
    }
    w_before = w_state.stage, x_before = x_state.stage;
    w_state.Advance();
    x_state.Advance();
  }
  WarpgroupWait<0>();
  WarpgroupFenceOperand(c);
}

// Epilogue of a thread. Its accumulators belong to two rows of the tile and, in each row, to two
// adjacent channels of every eight. The first half of c is gate channels, the second up channels.
// kPlain: only GELU (tanh), no bias, y of dtype T. The shorter code of kPlain makes the kernel
// faster: a CTA runs its epilogue only once, so the time to fetch the instructions counts.
template <typename T, bool kPlain>
class TwoCtaGatedEpilogue {
 public:
  __device__ __forceinline__ TwoCtaGatedEpilogue(const SplitKArgs& a, const TwoCtaGatedWork& share)
      : a_(a),
        row_(static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
             static_cast<int>(threadIdx.x) % 32 / 4),
        column_(share.column + static_cast<int>(threadIdx.x) / kWarpgroup * TwoCtaGatedTile::kBox +
                static_cast<int>(threadIdx.x) % 4 * 2),
        rows_(share.rows),
        first_((share.row + row_) * a.y_stride + column_) {}

  __device__ __forceinline__ void Run(const float (&c)[TwoCtaGatedTile::kChannels / 8][4]) const {
    constexpr int kPieces = TwoCtaGatedTile::kBox / 8;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (column_ + j * 8 >= a_.columns) break;
      const float2 gate = BiasAt(column_ + j * 8), up = BiasAt(a_.up_offset + column_ + j * 8);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* g = &c[j][half * 2];
        const float* u = &c[kPieces + j][half * 2];
        if (row_ + half * 8 >= rows_) break;
        Store(first_ + half * 8 * a_.y_stride + j * 8,
              {Value(g[0], gate.x, u[0], up.x), Value(g[1], gate.y, u[1], up.y)});
      }
    }
  }

 private:
  // Biases of channels `at` and `at` + 1 of W.
  __device__ __forceinline__ float2 BiasAt(int at) const {
    if (kPlain) return {};
    if (a_.bias != nullptr) return *reinterpret_cast<const float2*>(a_.bias + at);
    if (a_.out_bias == nullptr) return {};
    if (a_.y_f32) return reinterpret_cast<const float2*>(a_.out_bias)[at / 2];
    const T* bias = static_cast<const T*>(a_.out_bias) + at;
    return {ToF32(bias[0]), ToF32(bias[1])};
  }
  __device__ __forceinline__ float Value(float g, float gate_bias, float u, float up_bias) const {
    g = fmaf(a_.alpha, g, gate_bias);
    u = fmaf(a_.alpha, u, up_bias);
    const bool gelu = kPlain || a_.activation == Activation::kGeluTanh;
    return (gelu ? QuickGelu(g) : Activated(a_.activation, g)) * u;
  }
  __device__ __forceinline__ void Store(int64_t at, const float2& v) const {
    if (!kPlain && a_.y_f32) {
      *reinterpret_cast<float2*>(static_cast<float*>(a_.y) + at) = v;
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<T*>(a_.y) + at) = PackPair<T>(v.x, v.y);
    }
  }

  const SplitKArgs& a_;
  const int row_, column_, rows_;  // first row within the CTA, column of y, rows of the CTA
  const int64_t first_;            // offset in y, in elements
};

// Gated GEMM in pairs of CTAs: y = activation(alpha x G^T + g) * (alpha x U^T + u), where the rows
// of W are those of G and then those of U, and the bias is g and then u.
// Shapes: x [65 to 128 rows, k] T, W [2 columns, k] T, y [rows, columns] f32 or T; k is a multiple
// of 8; `columns` and all row strides are multiples of 4.
// Accumulation: wgmma in f32, over k in ascending order.
// Mapping: a cluster of two CTAs computes 80 gate channels and their 80 up channels, each CTA for
// 64 rows of x. One CTA loads the gate channels of W and the other the up channels, and each
// multicasts them to both CTAs. The M side of wgmma is rows of x. A consumer warpgroup has 40 gate
// channels and their 40 up channels, so that one thread holds both accumulators of an output value.
// Two producer threads load 64 values of k per stage: one loads W and starts before the kernel
// waits for its inputs; the other loads x after that wait.
// Bound: HBM, W is read once: 10240 x 2048 is 42 MB, 9.8 us at 4.3 TB/s on an H200.
// Tests: tests/kernels/linear/persistent_test.cc, linear_test.cc. Measurements: linear/NOTES.md.
template <typename T, bool kPlain>
__global__ void __launch_bounds__(TwoCtaGatedTile::kThreads, 1)
    TwoCtaGatedKernel(const __grid_constant__ SplitKArgs a,
                      const __grid_constant__ SplitKTensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = TwoCtaGatedTile;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const TwoCtaGatedWork share(a);
  auto& tail = *reinterpret_cast<TwoCtaGatedSmem::Tail*>(memory + TwoCtaGatedSmem::tail);
  const TwoCtaGatedProducer copier(a, maps, share, shared, tail);
  // Indices of the producer threads.
  constexpr int kCopiesWeights = S::kConsumerThreads, kCopiesRows = S::kConsumerThreads + 32;
  if (thread == kCopiesWeights) {
    PrefetchTensorMap(maps.w);
    copier.Begin();
  }
  if (thread == kCopiesRows) PrefetchTensorMap(maps.x);
  __syncthreads();
  ArriveAtCluster();
  WaitForCluster();  // the mbarriers of both CTAs are initialised

  if (warp >= S::kConsumerThreads / 32) {
    if (thread == kCopiesWeights) copier.RunWeights();
    if (thread == kCopiesRows) copier.RunRows();
    __syncwarp();
  } else {
    WaitForKernelsBefore();
    float sums[S::kChannels / 8][4] = {};
    TwoCtaGatedMainloop<T>(share, shared, tail, sums);
    TwoCtaGatedEpilogue<T, kPlain>(a, share).Run(sums);
  }
  ArriveAtCluster();
  WaitForCluster();  // the other CTA may still copy to this one or arrive at its mbarriers
#endif
}

// Whether this kernel supports the GEMM of w (gated: gate rows, then up rows) and is faster than
// cuBLASLt. False unless the number of its CTAs is between 3/4 and all of the number of SMs.
bool TwoCtaGatedFits(const WeightView& w, int64_t rows, const CudaStream& stream);
// Runs the GEMM. Does not check whether the kernel supports the call; RunSplitK does.
void LaunchTwoCtaGated(const LinearArgs& args, CudaStream& stream);

}  // namespace quintet::cuda
