// bf16 / f16 attention with few queries per sequence, as in a decoder step. Memory bound: K and V
// are read once. This file divides the keys among warps and CTAs (split-KV) and merges their
// partial results; attention/decode.cuh has the work of one warp.
#include "kernels/attention/decode.cuh"

#include <algorithm>

namespace quintet::cuda {
namespace {

constexpr int kMinWarps = 4;        // warps per CTA
constexpr int kMaxWarps = 8;        // warps per CTA
constexpr int kMaxSplits = 8;       // CTAs per cluster: the portable maximum
constexpr int kMinSplitKeys = 512;  // keys per CTA, if several CTAs share an item
constexpr int kMaxWarpKeys = 512;   // keys per warp, as long as the CTA can have more warps

// Number of this kernel's warps that fit on one SM at the same time, limited by shared memory (with
// keys of e4m3: by registers).
template <int kDim>
constexpr int kResidentWarps = kDim == 64 ? 16 : 8;

// How the keys of one item (a sequence and head) are divided: steps of kStepKeys keys are assigned
// round-robin to the warps of `splits` CTAs, which form a cluster. Each CTA has 2^warps_log2 warps
// for the item.
struct SplitPlan {
  int warps_log2 = 0, splits = 1;
};

// Merged (not yet normalised) softmax result of one query for two neighbouring channels.
struct Merged {
  float ref_max = -INFINITY, sum = 0.0f;
  float2 out = {0.0f, 0.0f};
};

// Merges n partial results of query `row` for channels `channel` and `channel` + 1, in index order.
// at(i) returns the i-th PartialResult.
template <typename At>
__device__ __forceinline__ Merged Merge(int n, int row, int channel, const At& at) {
  Merged all;
#pragma unroll 4
  for (int i = 0; i < n; ++i) all.ref_max = fmaxf(all.ref_max, at(i).ref_max[row]);
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const float ref_max = at(i).ref_max[row];
    const float share = ref_max == -INFINITY ? 0.0f : Exp2(ref_max - all.ref_max);
    const float2 out = *reinterpret_cast<const float2*>(&at(i).out[row][channel]);
    all.sum = fmaf(share, at(i).sum[row], all.sum);
    all.out.x = fmaf(share, out.x, all.out.x);
    all.out.y = fmaf(share, out.y, all.out.y);
  }
  return all;
}

template <typename T>
__device__ __forceinline__ void WriteOut(const AttentionCall& call, int64_t row, int head,
                                         int channel, const Merged& all) {
  if (channel >= call.head_dim) return;
  const float inverse = all.sum > 0.0f ? __fdividef(1.0f, all.sum) : 0.0f;
  T* out = static_cast<T*>(call.out) + row * call.out_row + head * call.out_head + channel;
  *reinterpret_cast<uint32_t*>(out) = PackPair<T>(all.out.x * inverse, all.out.y * inverse);
}

// Barrier among the 2^warps_log2 warps of this CTA that work on the same head and sequence.
__device__ __forceinline__ void SyncItemWarps(int group, int warps_log2) {
  asm volatile("bar.sync %0, %1;" : : "r"(group + 1), "r"(32 << warps_log2) : "memory");
}

// Cluster barriers. After SyncCluster, shared memory writes before it are visible to all CTAs of
// the cluster. SyncClusterBeforeExit, called before a CTA exits, keeps the CTA's shared memory
// alive while others read it.
__device__ __forceinline__ void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ __forceinline__ void SyncClusterBeforeExit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// Returns the object at the same shared memory offset as this CTA's `own`, but in CTA `block` of
// the cluster (distributed shared memory).
template <typename Shared>
__device__ __forceinline__ const Shared& OfClusterBlock(const Shared& own, int block) {
#if __CUDA_ARCH__ >= 900
  const Shared* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&own), "r"(block));
  return *there;
#else
  return own;
#endif
}

// out = softmax(scale q k^T + bias + mask) v for up to 16 queries of a sequence; hence the beams of
// a request share one read of its keys. Supports causality and all biases except FIRE's; does not
// support a ColumnMask.
// Shapes: q, out [rows, heads, head_dim]; k, v rows of head_dim values (at most 128) with equal
// strides, all 16-byte aligned; T is bf16 or f16, Kv is T or uint8_t (e4m3).
// Math: MMAs of T (of f16 if Kv is e4m3) with f32 accumulators; online softmax with lazy rescaling:
// P = 2^(score - ref_max), rounded to that type for P V, where ref_max is raised to the row maximum
// only when a score exceeds ref_max by more than kRescaleThreshold. Each warp has its own row sums
// and P V sums; they are merged in the order of warps, then of CTAs. The bits of a row depend on
// its sequence and on the number of warps per item (one head of one sequence), and are the same
// from run to run.
// Mapping: grid (CTAs, splits), see SplitPlan. The warps of an item process steps of 16 keys; each
// warp has kStages steps in flight. One MMA covers 8 queries, although often only one or four
// exist: the MMAs are not the bottleneck. Channels are permuted so that a lane's 16-byte reads of K
// are its MMA fragments.
// Bound: reading 2 * kv_len * head_dim * sizeof(Kv) bytes per head and sequence at 4.3 TB/s (H200);
// for few sequences, the sum of three latencies after WaitOnDependentGrids: one memory round trip,
// the MMAs, the merge.
// Test: tests/kernels/attention/attention_test.cc. History: attention/NOTES.md.
template <typename T, int kDim, int kTiles, typename Kv>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    AttendFewRowsKernel(const __grid_constant__ AttentionCall call, Divisor heads, int warps_log2) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const memory = reinterpret_cast<WarpMemory<kDim, Kv>*>(shared);
  const int block_warps = static_cast<int>(blockDim.x) / 32;
  const int w = static_cast<int>(threadIdx.x) / 32, group = w >> warps_log2;
  const int item = (static_cast<int>(blockIdx.x) * block_warps + w) >> warps_log2;
  const int splits = static_cast<int>(gridDim.y), split = static_cast<int>(blockIdx.y);
  const int owner = static_cast<int>(heads.Quotient(static_cast<uint32_t>(item)));
  const int s = min(owner, call.sequences - 1), head = item - owner * call.heads;
  const int first_warp = group << warps_log2, warps = 1 << warps_log2;
  // A step is kStepKeys keys. Consecutive steps go to different CTAs, so that even a small number
  // of steps is divided evenly.
  const int begin = ((w - first_warp) * splits + split) * kStepKeys;
  FewRowsWarp<T, kDim, kTiles, Kv> warp(call, memory[w],
                                        {s, head, begin, (splits << warps_log2) * kStepKeys});
  const Sequence sequence(call, s);
  if (owner != s || sequence.q_len == 0 || sequence.q_len > kFewRows) {
    WaitOnDependentGrids();
    return;
  }
  warp.Run(sequence);
  // steps: number of steps (kStepKeys keys each) in the sequence. used: this CTA has `warps` warps
  // for the item (a sequence and head); `used` is the number of these warps that process at least
  // one step.
  const int steps = (sequence.kv_len + kStepKeys - 1) / kStepKeys;
  const int used = min(splits == 1 ? steps : (steps - split + splits - 1) / splits, warps);
  if (w - first_warp < used) warp.StoreResult(sequence.q_len);
  SyncItemWarps(group, warps_log2);

  PartialResult<kDim>& block_result = *reinterpret_cast<PartialResult<kDim>*>(memory + block_warps);
  const int pairs = sequence.q_len * (kDim / 2), threads = 32 << warps_log2;
  const int thread = static_cast<int>(threadIdx.x) - first_warp * 32;
  for (int i = thread; i < pairs; i += threads) {
    const int row = i / (kDim / 2), channel = i % (kDim / 2) * 2;
    const Merged all = Merge(used, row, channel, [&](int from) -> const PartialResult<kDim>& {
      return memory[first_warp + from].result;
    });
    if (splits == 1) {
      WriteOut<T>(call, sequence.first_row + row, head, channel, all);
      continue;
    }
    *reinterpret_cast<float2*>(&block_result.out[row][channel]) = all.out;
    if (channel == 0) block_result.ref_max[row] = all.ref_max, block_result.sum[row] = all.sum;
  }
  if (splits == 1) return;
  SyncCluster();
  for (int i = split * threads + thread; i < pairs; i += splits * threads) {
    const int row = i / (kDim / 2), channel = i % (kDim / 2) * 2;
    const Merged all = Merge(splits, row, channel, [&](int from) -> const PartialResult<kDim>& {
      return OfClusterBlock(block_result, from);
    });
    WriteOut<T>(call, sequence.first_row + row, head, channel, all);
  }
  SyncClusterBeforeExit();
}

// Chooses how many warps of a CTA share an item (a sequence and head). The number is at most
// kMaxWarps; it starts at one and is doubled while each warp has more than kMaxWarpKeys keys of
// the longest sequence, or while each warp has more than kStepKeys keys and the device can hold
// twice as many warps at once. If there are few items with many keys, a cluster of CTAs shares
// each item.
template <int kDim>
SplitPlan PlanSplits(int64_t items, int64_t max_kv_len, const CudaStream& stream) {
  const int64_t warps = int64_t{kResidentWarps<kDim>} * stream.num_sms() / items;
  SplitPlan plan;
  if (stream.hopper()) {
    const int64_t splits = std::min<int64_t>(warps / kMinWarps, max_kv_len / kMinSplitKeys);
    plan.splits = static_cast<int>(std::clamp<int64_t>(splits, 1, kMaxSplits));
  }
  for (int& log2 = plan.warps_log2; 2 << log2 <= kMaxWarps; ++log2) {
    const int64_t warp_keys = max_kv_len / plan.splits >> log2;
    const bool spare = 2 << log2 <= warps / plan.splits && warp_keys > kStepKeys;
    if (!spare && warp_keys <= kMaxWarpKeys) break;
  }
  return plan;
}

template <typename T, int kDim, int kTiles, typename Kv>
void LaunchFewRows(const AttentionCall& call, int max_kv_len, CudaStream& stream) {
  const int64_t items = int64_t{call.sequences} * call.heads;
  const SplitPlan plan = PlanSplits<kDim>(items, max_kv_len, stream);
  const int64_t warps = std::max(kMinWarps, 1 << plan.warps_log2);
  const int64_t blocks = ((items << plan.warps_log2) + warps - 1) / warps;
  const size_t bytes = static_cast<size_t>(warps) * sizeof(WarpMemory<kDim, Kv>) +
                       (plan.splits > 1 ? sizeof(PartialResult<kDim>) : 0);
  const unsigned splits = static_cast<unsigned>(plan.splits);
  LaunchClusters(stream, dim3(static_cast<unsigned>(blocks), splits), dim3(1, splits),
                 dim3(static_cast<unsigned>(warps * 32)), bytes,
                 AttendFewRowsKernel<T, kDim, kTiles, Kv>, call,
                 Divisor(static_cast<uint32_t>(call.heads)), plan.warps_log2);
}

template <typename T, int kDim, typename Kv>
void LaunchOfDim(const AttentionCall& call, int max_q_len, int max_kv_len, CudaStream& stream) {
  max_q_len <= 8 ? LaunchFewRows<T, kDim, 1, Kv>(call, max_kv_len, stream)
                 : LaunchFewRows<T, kDim, 2, Kv>(call, max_kv_len, stream);
}

}  // namespace

template <typename T>
void AttendFewRows(const AttentionCall& call, int max_q_len, int max_kv_len, CudaStream& stream) {
  const bool small = call.head_dim <= 64;
  const auto launch = call.kv_e4m3
                          ? (small ? LaunchOfDim<T, 64, uint8_t> : LaunchOfDim<T, 128, uint8_t>)
                          : (small ? LaunchOfDim<T, 64, T> : LaunchOfDim<T, 128, T>);
  launch(call, max_q_len, max_kv_len, stream);
}
template void AttendFewRows<__nv_bfloat16>(const AttentionCall&, int, int, CudaStream&);
template void AttendFewRows<__half>(const AttentionCall&, int, int, CudaStream&);

}  // namespace quintet::cuda
