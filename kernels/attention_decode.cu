// bf16 / f16 attention of few queries per sequence: a decoder step. Memory bound: K and V are read
// once. This file divides the keys among warps and CTAs (split-KV) and merges their partial
// results; attention_decode.cuh has the work of one warp.
#include "kernels/attention_decode.cuh"

#include <algorithm>

namespace quintet::cuda {
namespace {

constexpr int kLeastWarps = 4;        // warps per CTA
constexpr int kMostWarps = 8;         // warps per CTA
constexpr int kMostSplits = 8;        // CTAs per cluster: the portable maximum
constexpr int kLeastSplitKeys = 512;  // keys per CTA, if several CTAs share an item
constexpr int kMostWarpKeys = 512;    // keys per warp, as long as the CTA can have more warps

// Resident warps per SM, limited by shared memory.
template <int kDim>
constexpr int kWarpsAtOnce = kDim == 64 ? 16 : 8;

// How the keys of one item (a sequence and head) are divided: its steps are assigned round-robin to
// 2^warps_log2 warps of each of `splits` CTAs, which form a cluster.
struct Sharing {
  int warps_log2 = 0, splits = 1;
};

// Merged result of two channels of a query.
struct Merged {
  float base = -INFINITY, sum = 0.0f;
  float2 out = {0.0f, 0.0f};
};

// Merges n partial results in index order; at(i) returns the i-th.
template <typename At>
__device__ __forceinline__ Merged Merge(int n, int row, int channel, const At& at) {
  Merged all;
#pragma unroll 4
  for (int i = 0; i < n; ++i) all.base = fmaxf(all.base, at(i).base[row]);
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const float base = at(i).base[row];
    const float share = base == -INFINITY ? 0.0f : Exp2(base - all.base);
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

// Barrier of an item's warps in one CTA.
__device__ __forceinline__ void MeetWarps(int group, int warps_log2) {
  asm volatile("bar.sync %0, %1;" : : "r"(group + 1), "r"(32 << warps_log2) : "memory");
}

// Cluster barriers. After MeetBlocks, shared memory writes of all CTAs of the cluster are visible
// to each other. PartBlocks before exit keeps a CTA's shared memory alive while others read it.
__device__ __forceinline__ void MeetBlocks() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ __forceinline__ void PartBlocks() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// The address of `own` in the shared memory of another CTA of the cluster (distributed shared
// memory).
template <typename Shared>
__device__ __forceinline__ const Shared& OfBlock(const Shared& own, int block) {
#if __CUDA_ARCH__ >= 900
  const Shared* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&own), "r"(block));
  return *there;
#else
  return own;
#endif
}

// out = softmax(scale q k^T + bias + mask) v for up to 16 queries of a sequence: the beams of a
// request share one read of its keys. No FIRE, no column mask.
// Shapes: q, out [rows, heads, head_dim]; k, v rows of head_dim values (a multiple of 8, at most
// 128) with equal strides, all 16-byte aligned; T is bf16 or f16.
// Math: as attention_tiled.cu, but with lazy rescaling: P = 2^(score - base), where base follows
// the row maximum only when a score exceeds it by kSlack. Each warp has its own sums; they are
// merged in the order of warps, then of CTAs. A result depends on its sequence and on the number of
// warps per item, and is the same from run to run.
// Mapping: grid (CTAs, splits), see Sharing; the warps of an item process steps of 16 keys, with
// kStages steps each in flight. One MMA covers 8 queries, of which one or four are used: FLOPs are
// free here. Channels are permuted so that a lane's 16-byte reads of K are its MMA fragments.
// Bound: 2 kv_len head_dim sizeof(T) bytes per head and sequence at 4.3 TB/s (H200); in a step of
// few rows the latency after the wait for q: one memory round trip, the MMAs and the merge.
// Test: tests/kernels/attention_test.cc. History: attention/NOTES.md.
template <typename T, int kDim, int kTiles>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    AttendFewRowsKernel(const __grid_constant__ AttentionCall call, Divisor heads, int warps_log2) {
  extern __shared__ __align__(16) unsigned char shared[];
  WarpMemory<kDim>* const memory = reinterpret_cast<WarpMemory<kDim>*>(shared);
  const int block_warps = static_cast<int>(blockDim.x) / 32;
  const int w = static_cast<int>(threadIdx.x) / 32, group = w >> warps_log2;
  const int item = (static_cast<int>(blockIdx.x) * block_warps + w) >> warps_log2;
  const int splits = static_cast<int>(gridDim.y), split = static_cast<int>(blockIdx.y);
  const int owner = static_cast<int>(heads.Quotient(static_cast<uint32_t>(item)));
  const int s = min(owner, call.sequences - 1), head = item - owner * call.heads;
  const int first_warp = group << warps_log2, warps = 1 << warps_log2;
  // Neighbouring steps go to different CTAs, so that few steps are divided evenly too.
  const int begin = ((w - first_warp) * splits + split) * kStepKeys;
  FewRowsWarp<T, kDim, kTiles> warp(call, memory[w],
                                    {s, head, begin, (splits << warps_log2) * kStepKeys});
  const Sequence sequence(call, s);
  if (owner != s || sequence.q_len == 0 || sequence.q_len > kFewRows) {
    WaitForInputs();
    return;
  }
  warp.Run(sequence);
  // Number of this CTA's warps (of the item) that have keys.
  const int steps = (sequence.kv_len + kStepKeys - 1) / kStepKeys;
  const int used = min(splits == 1 ? steps : (steps - split + splits - 1) / splits, warps);
  if (w - first_warp < used) warp.Keep(sequence.q_len);
  MeetWarps(group, warps_log2);

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
    if (channel == 0) block_result.base[row] = all.base, block_result.sum[row] = all.sum;
  }
  if (splits == 1) return;
  MeetBlocks();
  for (int i = split * threads + thread; i < pairs; i += splits * threads) {
    const int row = i / (kDim / 2), channel = i % (kDim / 2) * 2;
    const Merged all = Merge(splits, row, channel, [&](int from) -> const PartialResult<kDim>& {
      return OfBlock(block_result, from);
    });
    WriteOut<T>(call, sequence.first_row + row, head, channel, all);
  }
  PartBlocks();
}

// Chooses the number of warps per item: as many as can be resident on the device, but at most one
// per step, and more if a single long sequence would otherwise delay the others. If few items have
// many keys, a cluster of CTAs shares each item.
template <int kDim>
Sharing ShareOut(int64_t items, int64_t max_kv_len, const Stream& stream) {
  const int64_t warps = int64_t{kWarpsAtOnce<kDim>} * stream.device().multiprocessors() / items;
  Sharing sharing;
  if (stream.device().hopper()) {
    const int64_t splits = std::min<int64_t>(warps / kLeastWarps, max_kv_len / kLeastSplitKeys);
    sharing.splits = static_cast<int>(std::clamp<int64_t>(splits, 1, kMostSplits));
  }
  for (int& log2 = sharing.warps_log2; 2 << log2 <= kMostWarps; ++log2) {
    const int64_t warp_keys = max_kv_len / sharing.splits >> log2;
    const bool spare = 2 << log2 <= warps / sharing.splits && warp_keys > kStepKeys;
    if (!spare && warp_keys <= kMostWarpKeys) break;
  }
  return sharing;
}

template <typename T, int kDim, int kTiles>
void LaunchFewRows(const AttentionCall& call, int max_kv_len, Stream& stream) {
  const int64_t items = int64_t{call.sequences} * call.heads;
  const Sharing sharing = ShareOut<kDim>(items, max_kv_len, stream);
  const int64_t warps = std::max(kLeastWarps, 1 << sharing.warps_log2);
  const int64_t blocks = ((items << sharing.warps_log2) + warps - 1) / warps;
  const size_t bytes = static_cast<size_t>(warps) * sizeof(WarpMemory<kDim>) +
                       (sharing.splits > 1 ? sizeof(PartialResult<kDim>) : 0);
  const unsigned splits = static_cast<unsigned>(sharing.splits);
  LaunchClusters(stream, dim3(static_cast<unsigned>(blocks), splits), dim3(1, splits),
                 dim3(static_cast<unsigned>(warps * 32)), bytes,
                 AttendFewRowsKernel<T, kDim, kTiles>, call,
                 Divisor(static_cast<uint32_t>(call.heads)), sharing.warps_log2);
}

}  // namespace

template <typename T>
void AttendFewRows(const AttentionCall& call, int max_q_len, int max_kv_len, Stream& stream) {
  const auto launch = call.head_dim <= 64
                          ? (max_q_len <= 8 ? LaunchFewRows<T, 64, 1> : LaunchFewRows<T, 64, 2>)
                          : (max_q_len <= 8 ? LaunchFewRows<T, 128, 1> : LaunchFewRows<T, 128, 2>);
  launch(call, max_kv_len, stream);
}
template void AttendFewRows<__nv_bfloat16>(const AttentionCall&, int, int, Stream&);
template void AttendFewRows<__half>(const AttentionCall&, int, int, Stream&);

}  // namespace quintet::cuda
