// Attention of few queries in bf16 or f16: a decoder's step. Bound by reading the keys and values
// once; how warps do that is in attention_decode.cuh, here is how they share the keys.
#include "kernels/attention_decode.cuh"

#include <algorithm>

namespace quintet::cuda {
namespace {

constexpr int kLeastWarps = 4;        // of a block
constexpr int kMostWarps = 8;         // of a block
constexpr int kMostSplits = 8;        // blocks of a portable cluster
constexpr int kLeastSplitKeys = 512;  // of a block that shares an item with others
constexpr int kMostWarpKeys = 512;    // where warps are left in a block

// How many warps a multiprocessor has memory for.
template <int kDim>
constexpr int kWarpsAtOnce = kDim == 64 ? 16 : 8;

// The keys of one item (a sequence and head) are dealt out, a step at a time, to 2^warps_log2
// warps of each of `splits` blocks, which are a cluster.
struct Sharing {
  int warps_log2 = 0, splits = 1;
};

// Two channels of a query.
struct Merged {
  float base = -INFINITY, sum = 0.0f;
  float2 out = {0.0f, 0.0f};
};

// The sum of n partial results, in their order; at(i) is the i-th one.
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

// Until all of an item's warps of a block are here.
__device__ __forceinline__ void MeetWarps(int group, int warps_log2) {
  asm volatile("bar.sync %0, %1;" : : "r"(group + 1), "r"(32 << warps_log2) : "memory");
}

// Until all of a cluster are here. What each wrote to its shared memory before the first meeting is
// there for the others; the last one is so that nobody's goes while others read it.
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

// The same place in the shared memory of another block of the cluster.
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

// What: out = softmax(scale q k^T + bias + mask) v for up to 16 queries of a sequence: the
// beams of a request share one reading of its keys. No FIRE.
// Shapes: q, out [rows, heads, head_dim], k, v rows of head_dim values (a multiple of 8, at
// most 128), all at 16-byte addresses and those of k and v alike apart, T bf16 or f16.
// Math: as attention_tiled.cu, but a query's weights are 2^(score - base) with a base that follows
// its largest score only when that is far ahead; each warp has sums of its own, merged in the order
// of warps, then of blocks. A row's result depends on its sequence and on how many warps the launch
// gives an item, and is the same from run to run.
// Map: grid (blocks, splits); Sharing says how. An item's warps take turns of 16 keys, kStages of
// them under way each. One mma covers 8 queries, of which one or four are used: products are free
// here. Channels are permuted so that the 16 bytes of keys that a lane reads are its fragments.
// Bound: 2 kv_len head_dim sizeof(T) bytes for each head and sequence, at 4.3 TB/s on an H200; in a
// step of few rows what comes after the wait for q: one trip to memory, the products and the merge.
// Spec: tests/kernels/attention_test.cc.
//
// Versions on an H200, bf16, 12 heads, head_dim 64; share of 4.3 TB/s at 128 sequences of 1000
// keys and at 32 of 128:
//   1 loads into registers, 32 keys a step: predicted 80 %, seen 62 % and 36 %.
//   2 copies of three steps of 16 keys under way, slots read beside lengths: predicted 85 %
//     and 55 %, seen 69 % and 32 %; the L2 cache is 87 % busy, DRAM 62 %.
//     Rejected: keys in whole rows, read by other lanes: predicted 80 %, seen 70 %.
//   3 values in whole rows, read by ldmatrix: two lanes that were not side by side had each asked
//     for half of the same 32 bytes, a third of all that L2 gave. Predicted 88 %, seen 93 % and
//     38 %.
// From here on also us a call within a recorded step: T5-base's cross-attention over 128 keys at 1,
// 32 and 128 rows, GPT-2's attention over 192 at 1 and 128 (version 3: 4.0, 9.1, 24, 6.6 and 31).
//   4 queries as columns, an item's warps by how many items there are, clusters instead of a second
//     kernel, settled keys asked for before the wait: predicted 2, 4, 15, 2.8 and 21,
//     seen 2.4, 6.5, 19, 3.3 and 26; a long sequence's only warp does 450 instructions a step, 79 %
//     and 46 %.
//   5 a third of the instructions for copies, bases that seldom move, no bias where there is none:
//     215 a step. Predicted 2.2, 5, 15, 2.8 and 21; seen 2.2, 4.9, 16, 2.9 and 22; 92 % and 48 %,
//     32 heads at 128 sequences of 512 keys 103 %: reading alone is faster than copying.
//     Rejected: four or five stages of fewer warps: better at 128 rows of 128 keys alone (15.0
//     us, not 16.6), worse in the step (797 us, not 788) and with 32 heads (13.3, not 10.5 us at 32
//     rows); two or four warps an item at 128 rows: a step of T5-base takes 2 and 8 % longer.
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
  // Neighbouring steps to different blocks: then few of them are shared evenly, too.
  const int begin = ((w - first_warp) * splits + split) * kStepKeys;
  FewRowsWarp<T, kDim, kTiles> warp(call, memory[w],
                                    {s, head, begin, (splits << warps_log2) * kStepKeys});
  const Sequence sequence(call, s);
  if (owner != s || sequence.q_len == 0 || sequence.q_len > kFewRows) {
    WaitForInputs();
    return;
  }
  warp.Run(sequence);
  // Warps of this block that have keys.
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

// As many warps for each item as the device holds at once, but no more than it has steps; more than
// that where a long sequence among others would hold them up. A block has its limit: where few
// items have many keys, clusters of blocks share them.
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
