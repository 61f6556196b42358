// Split-K GEMM for tens to a few hundred rows on Hopper (sm_90a): the kernel, and the types that it
// shares with its launcher (linear/split_k.cu).
#pragma once

#include "kernels/linear/byte_weights.cuh"
#include "kernels/linear/split_k_each_lora.cuh"
#include "kernels/linear/split_k_one_lora.cuh"
#include "kernels/ptx/tma.cuh"

namespace quintet::cuda {

// How one GEMM is tiled: an output tile has 64 channels (rows of W) and `rows` rows of x (16, 32 or
// 64). A cluster of `splits` CTAs splits the sum over k; each CTA pipelines its TMA loads through
// `stages` stages.
struct SplitKPlan {
  int rows, splits, stages;
};

// TMA tensor maps of W and x.
struct SplitKTensorMaps {
  CUtensorMap w, x;
};

// Copies `bytes` bytes of this CTA's shared memory at `from` to address `there` in the shared
// memory of another CTA of the cluster. The bytes count towards the mbarrier `barrier` of that CTA.
__device__ __forceinline__ void CopyToCta(uint32_t there, uint32_t from, int bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];"
      :
      : "r"(there), "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Producer: issues the TMA loads of W and x for the k range of a CTA. If S::kTwoCopy, one thread
// loads W and another thread loads x; otherwise one thread loads both. The thread that loads W also
// announces the bytes of the whole stage (W and x) to the stage's mbarrier `full`; the load of x
// may complete before that.
template <typename S>
class SplitKProducer {
  using Tail = SplitKSmem::Tail;

 public:
  __device__ __forceinline__ SplitKProducer(const SplitKArgs& a, const SplitKTensorMaps& maps,
                                            const SplitKWork<S>& share, uint32_t ring, Tail& tail)
      : a_(a), maps_(maps), share_(share), ring_(ring), tail_(tail) {}

  // Initialises the mbarriers and, if a single thread loads both operands, starts the first loads
  // of W. Called by one thread. `received_bytes`: the bytes of partial sums that other CTAs of the
  // cluster send to this one.
  __device__ __forceinline__ void Begin(int received_bytes) const {
    for (int stage = 0; stage < a_.stages; ++stage) {
      BarrierInit(SharedAddress(&tail_.full[stage]), 1);
      constexpr int kReaders = S::kOneLora || S::kBytes ? 2 : 1;  // warpgroups
      BarrierInit(SharedAddress(&tail_.empty[stage]), kReaders * kWarpgroup / 32);
    }
    BarrierInit(SharedAddress(&tail_.received), 1);
    if constexpr (S::kLora) BarrierInit(SharedAddress(&tail_.lora_ready), kWarpgroup / 32);
    FenceBarrierInit();
    if constexpr (!S::kTwoCopy) {
      for (int i = 0; i < First(); ++i) CopyWeights(i, i);
    }
    BarrierArriveExpectTx(SharedAddress(&tail_.received), received_bytes);
  }

  // Loads W and x from a single thread. Begin has already started the first loads of W: no kernel
  // writes W, so those loads need not wait for the previous kernel.
  __device__ __forceinline__ void RunBoth() const {
    WaitForKernelsBefore();
    for (int i = 0; i < First(); ++i) CopyRows(i, i);
    LaunchDependentGrids();
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
      if (i + 1 == First()) LaunchDependentGrids();
    });
  }

 private:
  // Number of k steps that can be loaded before a pipeline stage has to be reused.
  __device__ __forceinline__ int First() const { return min(share_.count, a_.stages); }
  // Calls copy(i, stage) for the k steps i = begin, begin + 1, ..., each as soon as the consumer
  // warpgroup has released that stage. `begin` is 0, or First() if the caller has already loaded
  // the steps before it.
  template <typename Copy>
  __device__ __forceinline__ void Run(int begin, const Copy& copy) const {
    int stage = 0;
    uint32_t parity = begin == 0 ? 1 : 0;  // a fresh mbarrier passes a wait for parity 1
    for (int i = begin; i < share_.count; ++i) {
      BarrierWait(SharedAddress(&tail_.empty[stage]), parity);
      copy(i, stage);
      if (++stage == a_.stages) stage = 0, parity ^= 1;
    }
  }
  __device__ __forceinline__ void CopyWeights(int i, int stage) const {
    const uint32_t full = SharedAddress(&tail_.full[stage]), to = ring_ + stage * S::kStageBytes;
    // In units of two bytes, as the tensor map has them: a step has 128 bytes of a row.
    const int k = (share_.begin + i) * kSplitKDepth;
    BarrierArriveExpectTx(full, S::kStageBytes);
    TmaLoad(to, maps_.w, k, 0, share_.column, full);
    if (!S::kAdds && a_.up_offset > 0) {
      TmaLoad(to + S::kWBytes / 2, maps_.w, k, 0, a_.up_offset + share_.column, full);
    }
  }
  __device__ __forceinline__ void CopyRows(int i, int stage) const {
    const uint32_t full = SharedAddress(&tail_.full[stage]);
    uint32_t to = ring_ + stage * S::kStageBytes + S::kWBytes;
#pragma unroll
    for (int k = 0; k < S::kDepth; k += kSplitKDepth, to += S::kXBoxBytes) {
      TmaLoad(to, maps_.x, (share_.begin + i) * S::kDepth + k, 0, share_.row, full);
    }
  }

  const SplitKArgs& a_;
  const SplitKTensorMaps& maps_;
  const SplitKWork<S>& share_;
  const uint32_t ring_;
  Tail& tail_;
};

// Mainloop of the consumer warpgroup: c += W x^T over the k range of the CTA. c holds the wgmma
// accumulators of the [64 channels, kRows] tile.
template <typename T, typename S>
__device__ __forceinline__ void SplitKMainloop(const SplitKWork<S>& share, int stages,
                                               uint32_t ring, SplitKSmem::Tail& tail,
                                               float (&c)[S::kRows / 8][4]) {
  int stage = 0, before = 0;
  uint32_t parity = 0;
  WarpgroupFenceOperand(c);
  for (int i = 0; i < share.count; ++i) {
    BarrierWait(SharedAddress(&tail.full[stage]), parity);
    const uint32_t at = ring + stage * S::kStageBytes;
    const uint64_t w = MakeSmemDescriptor(at, 16);
    const uint64_t x = MakeSmemDescriptor(at + S::kWBytes, 16);
    WarpgroupArrive();
#pragma unroll
    for (int part = 0; part < kSplitKDepth / 16; ++part) {
      Wgmma<T>(c, w + part * 2, x + part * 2, true);
    }
    WarpgroupCommitBatch();
    WarpgroupWait<1>();
    if (i > 0 && threadIdx.x % 32 == 0) BarrierArrive(SharedAddress(&tail.empty[before]));
    before = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  WarpgroupWait<0>();
  WarpgroupFenceOperand(c);
}

// SplitKMainloop for 8-bit weights, of one of the two consumer warpgroups: adds the products of one
// half (`half`, 0 or 1) of every stage, a group of linear/byte_weights.cuh. While the tensor cores
// multiply, the warps convert the next weights to bf16 in registers. thread: index in the
// warpgroup.
template <typename S>
__device__ __forceinline__ void SplitKByteMainloop(const SplitKWork<S>& share, int stages,
                                                   uint32_t ring, SplitKSmem::Tail& tail, int half,
                                                   int thread, float (&c)[S::kRows / 8][4]) {
  constexpr bool kF8 = S::kWeights == SplitKWeights::kE4m3;
  constexpr int kProducts = kByteGroup / 16, kTurns = 2, kEach = kProducts / kTurns;
  static_assert(kByteGroup == kSplitKDepth && S::kDepth == 2 * kByteGroup);
  const int lane = thread % 32, g = lane / 4;
  // Where in the buffer of W this lane's 16 bytes of row g are, of the warp's 16 rows. Those of row
  // g + 8, which has the same swizzle, are eight rows further.
  const auto offset = static_cast<uint32_t>((thread / 32 * 16 + g) * 128 +
                                            ((half * kProducts + lane % 4) ^ g) * 16);
  const uint32_t x_offset = S::kWBytes + half * S::kXBoxBytes;
  uint32_t a[kTurns][kEach][4] = {};
  int stage = 0, before = 0;
  uint32_t parity = 0;
  WarpgroupFenceOperand(c);
  for (int i = 0; i < share.count; ++i) {
    BarrierWait(SharedAddress(&tail.full[stage]), parity);
    const uint32_t at = ring + stage * S::kStageBytes;
    const uint64_t x = MakeSmemDescriptor(at + x_offset, 16);
    uint32_t top[kProducts], bottom[kProducts];  // of rows g and g + 8
    LoadWords(at + offset, top);
    LoadWords(at + offset + 8 * 128, bottom);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t p = top[turn * kEach + j], q = bottom[turn * kEach + j];
        a[turn][j][0] = EvenPair<kF8>(p);
        a[turn][j][1] = EvenPair<kF8>(q);
        a[turn][j][2] = OddPair<kF8>(p);
        a[turn][j][3] = OddPair<kF8>(q);
      }
      WarpgroupFenceOperand(a[turn]);
      WarpgroupArrive();
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        WgmmaKMajor<__nv_bfloat16>(c, a[turn][j], x + (turn * kEach + j) * 2, true);
      }
      WarpgroupCommitBatch();
      WarpgroupWait<1>();
      WarpgroupFenceOperand(a[1 - turn]);
      if (turn == 0 && i > 0 && lane == 0) BarrierArrive(SharedAddress(&tail.empty[before]));
    }
    before = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  WarpgroupWait<0>();
  WarpgroupFenceOperand(a[1]);
  WarpgroupFenceOperand(c);
}

// The second consumer's part of the mainloop, and how its sums come to the first consumer: through
// the pipeline buffers, after both have finished. thread: index in the warpgroup.
constexpr int kSplitKSumsBarrier = 2;  // named barrier of both consumers
template <typename S>
__device__ __forceinline__ void SplitKSecondConsumer(const SplitKWork<S>& share, int stages,
                                                     uint32_t ring, SplitKSmem::Tail& tail,
                                                     int thread) {
  float sums[S::kRows / 8][4] = {};
  SplitKByteMainloop<S>(share, stages, ring, tail, 1, thread, sums);
  NamedBarrierSync(kSplitKSumsBarrier, 2 * kWarpgroup);  // the buffers are free
#pragma unroll
  for (int i = 0; i < S::kRows / 8; ++i) {
    StoreFloat4(ring + (i * kWarpgroup + thread) * 16, sums[i]);
  }
  NamedBarrierSync(kSplitKSumsBarrier, 2 * kWarpgroup);  // the sums are there
}
template <typename S>
__device__ __forceinline__ void SplitKAddSecondSums(uint32_t ring, int thread,
                                                    float (&sums)[S::kRows / 8][4]) {
  NamedBarrierSync(kSplitKSumsBarrier, 2 * kWarpgroup);
  NamedBarrierSync(kSplitKSumsBarrier, 2 * kWarpgroup);
#pragma unroll
  for (int i = 0; i < S::kRows / 8; ++i) {
    const float4 second = LoadFloat4(ring + (i * kWarpgroup + thread) * 16);
    sums[i][0] += second.x;
    sums[i][1] += second.y;
    sums[i][2] += second.z;
    sums[i][3] += second.w;
  }
}

// Split-K GEMM: y = activation(alpha x W^T + bias) + residual. With a gated weight, y =
// activation(gate) * up + residual, where gate and up are the two halves of alpha x W^T + bias. K
// and V may be stored in the KV cache instead of in y. With split RMSNorm (an RMSNorm between two
// GEMMs, each of which computes one half; see NormOutput) the kernel computes the second half of
// the norm of x, the first half of the norm of y, or both. LoRA terms are added to x W^T
// (linear/split_k_one_lora.cuh, linear/split_k_each_lora.cuh).
// Shapes: x [rows, k] T, W [n, k] T or one byte each with one scale per channel, y [rows, columns]
// f32 or T. k is a multiple of 8 (bytes: 64); `columns` and all row strides are multiples of 4.
// Accumulation: wgmma in f32. Bytes are exact in bf16; the epilogue applies the scales. Each CTA
// sums its k range in a fixed order and the epilogue adds the CTAs' partial sums in rank order, so
// results are bit-identical from run to run.
// Mapping: one cluster per output tile, one k range per CTA. The operands are swapped: the M side
// of wgmma is 64 channels of W (gated: 32 gate channels and their 32 up channels), the N side is
// kRows rows of x. Warpgroup 0 is the consumer; two or one more warps are producers that load 64
// values of k (bytes: 128) per stage by TMA. With LoRA terms, a further warpgroup computes those;
// with bytes, it is a second consumer, for half of each stage. Loads of W start before the kernel
// waits for its inputs, loads of x after. At the end each CTA of the cluster finishes an equal
// share of the tile's rows, for which the other CTAs send it their partial sums.
// Bound: HBM, W is read once: 2 n k bytes (bytes: n k) at 4.3 TB/s on an H200. x is read from L2
// once per channel tile. In a decoder step the bound is the latency of the chain of kernels.
// Tests: tests/kernels/linear/linear_test.cc, linear/norm_epilogue_test.cc,
// linear/split_norm_test.cc. Measurements: linear/NOTES.md.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    SplitKKernel(const __grid_constant__ SplitKArgs a,
                 const __grid_constant__ SplitKTensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const SplitKWork<S> share(a);
  const SplitKSmem layout = SplitKSmem::Of<S>(a, share.splits);
  auto& tail = *reinterpret_cast<SplitKSmem::Tail*>(memory + layout.tail);
  // Indices of the producer threads.
  constexpr int kCopiesWeights = S::kProducerThread, kCopiesRows = kCopiesWeights + 32;
  const int finishes = max(0, min(layout.each, share.rows - share.rank * layout.each));
  const SplitKProducer<S> copier(a, maps, share, shared, tail);
  if (thread == kCopiesWeights) {
    PrefetchTensorMap(maps.w);
    copier.Begin((share.splits - 1) * finishes * S::kPitchBytes);
  }
  if (thread == (S::kTwoCopy ? kCopiesRows : kCopiesWeights)) PrefetchTensorMap(maps.x);
  __syncthreads();
  const bool splits = share.splits > 1;
  if (splits) ArriveAtCluster();  // the mbarriers of this CTA are initialised

  if (warp >= kWarpgroup / 32) {
    if constexpr (S::kTwoCopy) {
      if (thread == kCopiesWeights) copier.RunWeights();
      if (thread == kCopiesRows) copier.RunRows();
    } else {
      if (thread == kCopiesWeights) copier.RunBoth();
    }
    const int index = thread - S::kSecondThread;  // in the LoRA warpgroup or the second consumer
    if constexpr (S::kBytes) {
      if (warp < S::kProducerThread / 32) {
        SplitKSecondConsumer<S>(share, a.stages, shared, tail, index);
      }
    }
    if constexpr (S::kLora) {
      if constexpr (S::kOneLora) {
        if (index >= 0) SplitKOneLora<T, S>(a, share, layout, memory, shared, index).Run();
      } else {
        if (index >= 0) SplitKEachLora<T, S>(a, share, layout, memory, finishes, index).Run();
      }
    }
    __syncwarp();
    if (splits) WaitForCluster();
  } else {
    SplitKEpilogue<T, S> finish(a, share, layout, shared, thread);
    WaitForKernelsBefore();
    finish.AskForResidual();
    finish.FinishNorm(thread, finishes);
    if (!S::kAdds && a.cache != nullptr && thread < share.rows) {
      tail.row_slot[thread] = RowSlot(a, share.row + thread);
    }
    float sums[S::kRows / 8][4] = {};
    if constexpr (S::kBytes) {
      SplitKByteMainloop<S>(share, a.stages, shared, tail, 0, thread, sums);
      SplitKAddSecondSums<S>(shared, thread, sums);
    } else {
      SplitKMainloop<T, S>(share, a.stages, shared, tail, sums);
    }
    if constexpr (S::kOneLora) {
      BarrierWait(SharedAddress(&tail.lora_ready), 0);
      const float* const terms = reinterpret_cast<const float*>(memory + layout.terms) + thread;
#pragma unroll
      for (int i = 0; i < S::kRows / 2; ++i) sums[i / 4][i % 4] += terms[i * kWarpgroup];
    }

    // After this barrier the pipeline buffers are free. Each CTA stores its partial sums
    // [row][channel] in them, except the sums of the rows that it finishes itself: these go to the
    // array at layout.received, to which the other CTAs of the cluster send theirs.
    NamedBarrierSync(1, kWarpgroup);
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
    if (splits) FenceViewAsyncShared();
    NamedBarrierSync(1, kWarpgroup);
    if (splits) {
      WaitForCluster();
      if (thread < share.splits && thread != share.rank) {
        const int begin = thread * layout.each;
        const int rows = min(layout.each, share.rows - begin);
        const int to = layout.received + share.rank * layout.each * S::kPitchBytes;
        if (rows > 0) {
          CopyToCta(InBlock(shared + to, thread), shared + begin * S::kPitchBytes,
                    rows * S::kPitchBytes, InBlock(SharedAddress(&tail.received), thread));
        }
      }
      BarrierWait(SharedAddress(&tail.received), 0);
    }
    if constexpr (S::kLora && !S::kOneLora) BarrierWait(SharedAddress(&tail.lora_ready), 0);
    finish.Run(tail.row_slot);
  }
  if (splits) {
    ArriveAtCluster();
    // Wait until copies of this CTA's sums to other CTAs no longer read its shared memory.
    WaitForCluster();
  }
#endif
}

// Whether weights are large: their GEMM uses SplitKKind::kLarge.
bool SplitKIsLarge(const WeightView& w);

// Returns the kernel arguments of a GEMM, without `stages`, which the plan determines.
SplitKArgs SplitKArgsOf(const LinearArgs& args, CudaStream& stream);

// Launches the GEMM of an instantiated tile.
template <typename T, typename S>
void LaunchSplitKTile(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  SplitKArgs a = SplitKArgsOf(args, stream);
  a.stages = plan.stages;
  const WeightView& w = *args.w;
  SplitKTensorMaps maps{};
  const int box = a.up_offset > 0 ? S::kChannels / 2 : S::kChannels;
  const int64_t units = w.k() / (S::kBytes ? 2 : 1);  // of two bytes in a row of W
  if (!MakeTensorMap({w.panels(), w.n(), 1, units, units, 0}, box, stream, &maps.w) ||
      !MakeTensorMap({args.x.data, a.rows, 1, w.k(), args.x.stride[0], 0}, S::kRows, stream,
                     &maps.x)) {
    return;
  }
  const int tiles = ceil_div(a.columns, box), splits = plan.splits;
  const dim3 grid(static_cast<unsigned>(tiles * splits),
                  static_cast<unsigned>(ceil_div(a.rows, S::kRows)));
  LaunchClusters(stream, grid, dim3(static_cast<unsigned>(splits)), dim3(S::kThreads),
                 static_cast<size_t>(SplitKSmem::Of<S>(a, splits).bytes), SplitKKernel<T, S>, a,
                 maps);
}

// Launches the GEMM with this plan. Does not check whether the kernel supports the call; RunSplitK
// does.
void LaunchSplitK(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream);
// Like LaunchSplitK, but for 8-bit weights; in linear/split_k_bytes.cu.
void LaunchSplitKBytes(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream);
// Like LaunchSplitK, but for a GEMM with LoRA terms; in linear/split_k_lora.cu.
void LaunchSplitKLora(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream);
// SplitKLora::blocks of a call.
int SplitKOneLoraBlocks(const LinearArgs& args);
// Whether LaunchSplitKLora supports the call: checks the factors' dtype and rank, the size of the
// parts, and the number of CTAs.
bool SplitKLoraFits(const LinearArgs& args, const SplitKPlan& plan, const CudaStream& stream);

}  // namespace quintet::cuda
