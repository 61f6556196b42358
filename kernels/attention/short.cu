// bf16 / f16 attention of short packed sequences, with tensor-core instructions available from
// sm_80 on. For such sequences the latencies of startup and epilogue matter more than the MMAs.
#include <algorithm>

#include "kernels/attention/call.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/ptx/mma.cuh"

namespace quintet::cuda {
namespace {

constexpr int kDim = kShortHeadDim;
constexpr int kRows = 64, kThreads = kRows / 16 * 32;  // one warp per 16 queries
constexpr int kKeys = 64;                              // keys per tile
constexpr int kPieces = kDim / 8;                      // 16-byte pieces per row

// Element offset of a 16-byte piece of a row. Pieces are swizzled: pieces with the same index in
// eight consecutive rows are in different shared memory banks.
__device__ __forceinline__ int Swizzled(int row, int piece) {
  return row * kDim + ((piece ^ (row & 7)) * 8);
}
__host__ __device__ __forceinline__ constexpr int WholeTiles(int keys) {
  return (keys + kKeys - 1) / kKeys * kKeys;
}
// Shared memory of one CTA in bytes: a query tile, K and V of `max_keys` keys, and one bias value
// for each distance (key position minus query position) that occurs between them.
constexpr int SharedBytes(int max_keys) {
  return (kRows + 2 * max_keys) * kDim * 2 + (kRows + max_keys) * 4;
}

// One thread's share of a CTA's work on a query tile. max_keys: number of keys whose K and V fit
// into shared memory.
template <typename T>
class ShortBlock {
 public:
  __device__ __forceinline__ ShortBlock(const AttentionCall& call, const Sequence& sequence,
                                        int first_key, int row, int head, int max_keys,
                                        unsigned char* shared)
      : call_(call),
        sequence_(sequence),
        head_(head),
        max_keys_(max_keys),
        rows_(min(kRows, sequence.q_len - row)),
        position_(sequence.position + row),
        first_key_(first_key),
        row_(sequence.first_row + row),
        q_(reinterpret_cast<T*>(shared)),
        k_(q_ + kRows * kDim),
        v_(k_ + max_keys * kDim),
        strip_(reinterpret_cast<float*>(v_ + max_keys * kDim)) {}

  // Mainloop over all keys, `max_keys_` keys at a time. Most loops are not unrolled, because
  // fetching the instructions of code that runs only once takes time, too.
  __device__ __forceinline__ void Run() {
#pragma unroll 1
    for (int begin = 0; begin == 0 || begin < sequence_.kv_len; begin += max_keys_) {
      if (begin > 0) __syncthreads();
      LoadBias(begin);
      if (begin == 0) WaitOnDependentGrids();
      Load(begin);
      const int end = min(sequence_.kv_len - begin, max_keys_);
      CpAsyncWait<1>();
      __syncthreads();
#pragma unroll 1
      for (int tile = 0; tile < end; tile += kKeys) {
        Score(tile);
        AddStrip(scores_, strip_ + kRows - 1 - WarpRow() + tile, call_.scale * kLog2E);
        if (end - tile < kKeys) HideFrom(scores_, end - tile);
        float rescale[2];
        softmax_.ComputeProbs(scores_, 1.0f, 0.0f, rescale);
        Rescale(out_, rescale);
        if (tile == 0) {
          CpAsyncWait<0>();
          __syncthreads();
        }
        AddValues(tile);
      }
    }
    StoreOutput();
  }

 private:
  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query of this thread's warp within the query tile.
  __device__ __forceinline__ static int WarpRow() {
    return static_cast<int>(threadIdx.x) / 32 * 16;
  }

  // Fills strip_ with the bias at each distance (key position minus query position) between keys
  // [begin, begin + max_keys_) and the tile's queries. May run before WaitOnDependentGrids, because
  // no other kernel writes the bias tables.
  __device__ __forceinline__ void LoadBias(int begin) const {
    const HeadBias bias(call_.bias, call_.causal, head_, call_.heads);
    const int first = begin - position_ - (kRows - 1);
    const int count = kRows + min(max_keys_, WholeTiles(sequence_.kv_len - begin));
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      strip_[i] = bias.At(first + i);
    }
  }

  // Copies `count` rows, the first at address `row`, to shared memory `to` (cp.async); rows from
  // index `valid` on become zeros. Each thread copies the same 16-byte piece of every kStep-th row.
  __device__ __forceinline__ void CopyRows(const T* row, int64_t stride, int count, int valid,
                                           T* to) const {
    // kStep is a multiple of 8; hence all rows that a thread copies have the same swizzle.
    constexpr int kStep = kThreads / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int first = static_cast<int>(threadIdx.x) / kPieces;
    if (piece * 8 >= call_.head_dim) valid = 0;
    row += first * stride + piece * 8;
    uint32_t there = SharedAddress(to + Swizzled(first, piece));
#pragma unroll 4
    for (int r = first; r < count; r += kStep) {
      CpAsync16(there, row, r < valid);
      row += kStep * stride;
      there += kStep * kDim * 2;
    }
  }
  __device__ __forceinline__ void Load(int begin) const {
    const int keys = min(sequence_.kv_len - begin, max_keys_), padded = WholeTiles(keys);
    const int64_t key = first_key_ + begin;
    if (begin == 0) {
      const T* q = static_cast<const T*>(call_.q) + head_ * call_.q_head + row_ * call_.q_row;
      CopyRows(q, call_.q_row, kRows, rows_, q_);
    }
    const T* k = static_cast<const T*>(call_.k) + head_ * call_.k_head + key * call_.k_row;
    CopyRows(k, call_.k_row, padded, keys, k_);
    CpAsyncCommit();
    const T* v = static_cast<const T*>(call_.v) + head_ * call_.v_head + key * call_.v_row;
    CopyRows(v, call_.v_row, padded, keys, v_);
    CpAsyncCommit();
  }

  // scores_ = Q K^T of the warp's queries and the 64 keys from index `tile` on.
  __device__ __forceinline__ void Score(int tile) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores_[j][e] = 0.0f;
    }
    const int query = WarpRow() + Lane() % 16;
    const int key = tile + Lane() % 8 + Lane() / 16 * 8, half = Lane() / 8 % 2;
#pragma unroll 1
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4];
      Ldmatrix(a, SharedAddress(q_ + Swizzled(query, 2 * step + Lane() / 16)));
#pragma unroll
      for (int j = 0; j < kKeys / 8; j += 2) {
        uint32_t b[4];
        Ldmatrix(b, SharedAddress(k_ + Swizzled(j * 8 + key, 2 * step + half)));
        Mma<T>(scores_[j], a[0], a[1], a[2], a[3], b[0], b[1]);
        Mma<T>(scores_[j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // out += P V
  __device__ __forceinline__ void AddValues(int tile) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t a[4];
      RoundProbs<T>(scores_, step, a);
      const int key = tile + step * 16 + Lane() % 16;
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t b[4];
        LoadMatricesTransposed(b, SharedAddress(v_ + Swizzled(key, n + Lane() / 16)));
        Mma<T>(out_[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        Mma<T>(out_[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // Epilogue: writes out_ / row sum to call_.out. The values pass through the warp's own rows of q_
  // in shared memory, so that neighbouring lanes store neighbouring 16-byte pieces.
  __device__ __forceinline__ void StoreOutput() {
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = softmax_.InverseSum(half);
      const int row = WarpRow() + half * 8 + Lane() / 4;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<uint32_t*>(q_ + Swizzled(row, n) + Lane() % 4 * 2) =
            PackPair<T>(out_[n][2 * half] * scale, out_[n][2 * half + 1] * scale);
      }
    }
    __syncwarp();
    const int piece = Lane() % kPieces;
    if (piece * 8 >= call_.head_dim) return;
    T* out = static_cast<T*>(call_.out) + head_ * call_.out_head + piece * 8;
#pragma unroll
    for (int i = Lane() / kPieces; i < 16; i += 32 / kPieces) {
      const int row = WarpRow() + i;
      if (row >= rows_) break;
      *reinterpret_cast<uint4*>(out + (row_ + row) * call_.out_row) =
          *reinterpret_cast<const uint4*>(q_ + Swizzled(row, piece));
    }
  }

  const AttentionCall& call_;
  const Sequence sequence_;
  const int head_, max_keys_, rows_, position_;
  // first_key_: row in call.k of the sequence's first key. row_: row in call.q of the tile's first
  // query.
  const int64_t first_key_, row_;
  T* const q_;
  T* const k_;
  T* const v_;
  float* const strip_;

  float scores_[kKeys / 8][4];
  float out_[kDim / 8][4] = {};
  OnlineSoftmax softmax_;
};

// Prefetches a head's whole bias table, because the CTA does not know yet which part of it its
// queries need.
__device__ __forceinline__ void PrefetchBias(const AttentionCall& call, int head) {
  const BiasTables& bias = call.bias;
  constexpr int kLine = 32;  // f32 values per cache line
  const int at = static_cast<int>(threadIdx.x) * kLine;
  if (bias.kind != BiasKind::kTable || at > 2 * bias.saturation) return;
  const float* table = bias.table + head * bias.table_stride;
  asm volatile("prefetch.global.L1 [%0];" : : "l"(table + at));
}

// out = softmax(scale q k^T + bias) v for one head and up to 64 queries of a sequence. Supports
// causality and all biases except FIRE's; does not support a ColumnMask.
// Shapes: q, out [rows, heads, head_dim]; k, v packed rows of head_dim values, 16-byte aligned;
// head_dim <= kDim; T is bf16 or f16.
// Math: MMAs of T with f32 accumulators; f32 online softmax over tiles of 64 keys; P rounded to T.
// Mapping: one CTA per query tile and head; neighbouring CTAs have neighbouring heads of the same
// rows; a warp owns 16 queries, whose scores, P and sums stay in registers. One cp.async group
// copies Q and all K rows that fit into shared memory, a second one all V rows; the bias is
// computed before WaitOnDependentGrids.
// Bound: for one sequence of 128 tokens, the latency of one memory round trip for the inputs and
// one for the output; for many sequences, reading q, k and v and writing out.
// Test: tests/kernels/attention/attention_test.cc. History: attention/NOTES.md.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    AttendShortKernel(const __grid_constant__ AttentionCall call, int max_keys,
                      int tiles_per_sequence) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int index = static_cast<int>(blockIdx.x) / call.heads;
  const int head = static_cast<int>(blockIdx.x) - index * call.heads;
  PrefetchBias(call, head);
  // If tiles_per_sequence > 0, the grid has this number of query tiles for every sequence (some may
  // be empty), and the CTA finds its query tile by a division. Otherwise the CTA searches for its
  // query tile.
  const QueryTile query_tile =
      tiles_per_sequence > 0
          ? QueryTile(index / tiles_per_sequence,
                      (tiles_per_sequence - 1 - index % tiles_per_sequence) * kRows)
          : QueryTile(call, index, kRows);
  if (query_tile.sequence < 0) return WaitOnDependentGrids();
  const Sequence sequence(call, query_tile.sequence);
  const int first_key = __ldcg(call.kv_offsets + query_tile.sequence);
  if (sequence.q_len <= call.few_rows || query_tile.row >= sequence.q_len)
    return WaitOnDependentGrids();
  ShortBlock<T>(call, sequence, first_key, query_tile.row, head, max_keys, shared).Run();
}

constexpr int kMaxSharedKeys = 512;

}  // namespace

// Whether AttendShort supports the call and is faster than the kernel of attention/hopper.cu. It is
// faster if the keys of every sequence fit into one K tile of the Hopper kernel, or if the call is
// so small that startup time dominates.
bool ShortSuits(const AttentionCall& call, int64_t rows_total, int max_kv_len,
                const CudaStream& stream) {
  constexpr int kFewKeys = 128;
  constexpr int64_t kKeysPerSm = 512;
  if (call.kv_lens != nullptr || call.mask_tiles != nullptr) return false;
  if (call.bias.kind == BiasKind::kFire || call.head_dim > kDim) return false;
  if (!call.q_vectors || !call.kv_vectors) return false;
  const int64_t blocks = MaxQueryTiles(rows_total, call.sequences, kRows) * call.heads;
  return max_kv_len <= kFewKeys || blocks * max_kv_len <= stream.num_sms() * kKeysPerSm;
}

template <typename T>
void AttendShort(const AttentionCall& call, int64_t rows_total, int max_q_len, int max_kv_len,
                 CudaStream& stream) {
  const int max_keys = std::clamp(WholeTiles(max_kv_len), kKeys, kMaxSharedKeys);
  // `most`: an upper bound of the number of query tiles that all sequences together need. If
  // (number of sequences) * (tiles of the longest sequence) does not exceed this bound, every
  // sequence gets as many tiles as the longest one. A CTA then finds its sequence without a search
  // and starts earlier.
  const int tiles_per_sequence = (max_q_len + kRows - 1) / kRows;
  const int64_t most = MaxQueryTiles(rows_total, call.sequences, kRows);
  const bool even = tiles_per_sequence * int64_t{call.sequences} <= most;
  const int64_t blocks = (even ? tiles_per_sequence * int64_t{call.sequences} : most) * call.heads;
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
         static_cast<size_t>(SharedBytes(max_keys)), AttendShortKernel<T>, call, max_keys,
         even ? tiles_per_sequence : 0);
}
template void AttendShort<__nv_bfloat16>(const AttentionCall&, int64_t, int, int, CudaStream&);
template void AttendShort<__half>(const AttentionCall&, int64_t, int, int, CudaStream&);

}  // namespace quintet::cuda
