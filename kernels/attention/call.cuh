// One attention call as the GPU kernels see it: AttentionArgs with device addresses and with
// strides in elements, and device functions that find a CTA's sequence, queries and keys. Lengths
// are read on the device, so that a captured launch can be replayed with other lengths.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/bias.cuh"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {

// Limits of the kernel in attention/decode.cu: largest number of query rows per sequence (kFewRows)
// and largest head_dim (kFewRowsHeadDim). That kernel also requires that the AttentionCall has
// q_vectors and kv_vectors set, and k_row == v_row.
constexpr int kFewRows = 16;
constexpr int kFewRowsHeadDim = 128;
// Largest head_dim of attention/short.cu.
constexpr int kShortHeadDim = 64;
// Limits of attention/hopper.cu: largest head_dim, largest distance from which on a bias table is
// constant, and largest number of knots (breakpoints) of FIRE's piecewise linear bias.
constexpr int kHopperHeadDim = 128;
constexpr int kHopperSaturation = 256;
constexpr int kHopperKnots = 64;

// Computes n / divisor for 0 <= n < 2^31 by a multiplication with a precomputed constant (Granlund
// and Montgomery, 1994).
struct Divisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d) / d + 1);
  }
  __device__ uint32_t Quotient(uint32_t n) const { return (__umulhi(multiplier, n) + n) >> shift; }
};

// Number of packed rows that share one entry of AttentionCall::max_norms.
constexpr int kNormTileRows = 64;

struct AttentionCall {
  const void* q = nullptr;
  void* out = nullptr;
  // q_rows: number of query rows. q_row and out_row: strides from row to row. q_head and out_head:
  // strides from head to head. All strides are in elements.
  int64_t q_rows = 0, q_row = 0, q_head = 0, out_row = 0, out_head = 0;
  const int32_t* q_offsets = nullptr;    // [sequences + 1]
  const int32_t* q_positions = nullptr;  // [sequences]; null: kv_len - q_len

  // Row r of head h of K starts at k + h * k_head + r * k_row; V likewise. Packed keys: r is the
  // row index. Paged cache: k points to the layer's first chunk, and KeyRows computes r from a
  // key's slot.
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_row = 0, k_head = 0, v_row = 0, v_head = 0;
  int64_t k_rows = 0;                   // number of rows; packed only
  const int32_t* kv_offsets = nullptr;  // [sequences + 1]; packed only
  const int32_t* kv_lens = nullptr;     // [sequences]; paged cache only
  const int32_t* slots = nullptr;       // [sequences, slots_stride]; paged cache only
  int64_t slots_stride = 0;
  int slots_len = 0;  // readable slots per sequence, whatever its length
  Divisor page_size;
  uint32_t page_rows = 0;  // key rows per page
  bool kv_e4m3 = false;    // paged cache only: K and V are e4m3, otherwise they have the type of q

  int sequences = 0, heads = 0, head_dim = 0;
  int few_rows = 0;  // sequences with at most this many queries are left to AttendFewRows
  // Whether rows start and end on 16-byte boundaries, so that kernels can use 16-byte loads and
  // stores: q_vectors for q and out, kv_vectors for k and v.
  bool q_vectors = false, kv_vectors = false;
  bool causal = false;
  FreshKeys fresh = FreshKeys::kAny;
  float scale = 1.0f;
  BiasTables bias;
  MaskColumns mask;
  const MaskTile* mask_tiles = nullptr;  // null: no mask
  // [2, norm_tiles, heads] f32: upper bounds of the L2 norms of the q rows (index 0) and of the k
  // rows (index 1) in each tile of kNormTileRows packed rows, per head. Null: not computed.
  const float* max_norms = nullptr;
  int64_t norm_tiles = 0;
};

// A call with ColumnMask::reach, with global keys (AttentionArgs::globals), or both. Kernels that
// support these have instantiations of their own, so that other calls pay nothing for them.
struct LocalAttentionCall : AttentionCall {
  explicit LocalAttentionCall(const AttentionCall& call) : AttentionCall(call) {}

  int reach = kMaxMaskReach;
  // Row r of head h of the global keys starts at global_k + h * global_k_head + r * global_k_row,
  // the values likewise.
  const void* global_k = nullptr;
  const void* global_v = nullptr;
  int64_t global_k_row = 0, global_k_head = 0, global_v_row = 0, global_v_head = 0;
  const int32_t* global_offsets = nullptr;  // [sequences + 1]; null: no global keys
  int global_block = 1;
  bool global_vectors = false;  // as kv_vectors
  BiasTables global_bias;
};

// Lengths and positions of one sequence. A kernel may construct this before it calls
// WaitOnDependentGrids: the constructor's loads bypass the L1 cache, as all loads before that call
// must.
struct Sequence {
  int index;
  int first_row, q_len;
  int kv_len;
  int position;  // position of the first query

  __device__ Sequence(const AttentionCall& call, int s)
      : index(s),
        first_row(__ldcg(call.q_offsets + s)),
        q_len(__ldcg(call.q_offsets + s + 1) - first_row) {
    kv_len = call.kv_lens != nullptr
                 ? __ldcg(call.kv_lens + s)
                 : __ldcg(call.kv_offsets + s + 1) - __ldcg(call.kv_offsets + s);
    position = call.q_positions != nullptr ? __ldcg(call.q_positions + s) : kv_len - q_len;
  }
};

// Maps the keys of a sequence to row indices r of K and V (see AttentionCall::k).
struct KeyRows {
  const int32_t* slots;  // null: packed, or the sequence has no keys
  int first;
  Divisor page_size;
  uint32_t page_rows;

  __device__ KeyRows(const AttentionCall& call, int s)
      : slots(call.slots == nullptr ? nullptr : call.slots + s * call.slots_stride),
        first(call.kv_offsets == nullptr ? 0 : __ldcg(call.kv_offsets + s)),
        page_size(call.page_size),
        page_rows(call.page_rows) {}

  __device__ uint32_t Row(int key) const {
    return slots == nullptr ? static_cast<uint32_t>(first + key) : RowOfSlot(slots[key]);
  }
  __device__ uint32_t RowOfSlot(int32_t of) const {
    const uint32_t slot = static_cast<uint32_t>(of);
    const uint32_t page = page_size.Quotient(slot);
    return page * page_rows + (slot - page * page_size.divisor);
  }
};

// One query tile: up to `rows` queries of one sequence. Tiles are numbered sequence by sequence;
// within a sequence from its last tile to its first, because under causality the last queries see
// the most keys. The constructor that takes a tile's index uses warp shuffles; hence all lanes of a
// warp must call it together. A kernel may call it before WaitOnDependentGrids: its loads bypass
// the L1 cache, as all loads before that call must.
struct QueryTile {
  int sequence = -1;  // -1: the index is past the last tile
  int row = 0;        // index of the tile's first query in its sequence

  QueryTile() = default;
  __device__ QueryTile(int sequence, int row) : sequence(sequence), row(row) {}
  __device__ QueryTile(const AttentionCall& call, int index, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int base = 0; base < call.sequences; base += 32) {
      const int s = base + lane;
      const int q_len =
          s < call.sequences ? __ldcg(call.q_offsets + s + 1) - __ldcg(call.q_offsets + s) : 0;
      const int blocks = q_len <= call.few_rows ? 0 : (q_len + rows - 1) / rows;
      int end = blocks;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, end, step);
        if (lane >= step) end += before;
      }
      const uint32_t past = __ballot_sync(0xffffffffu, index < end);
      if (past != 0) {
        const int owner = __ffs(static_cast<int>(past)) - 1;
        const int last = __shfl_sync(0xffffffffu, end, owner) - 1;
        sequence = base + owner;
        row = (last - index) * rows;
        return;
      }
      index -= __shfl_sync(0xffffffffu, end, 31);
    }
  }
};

// Keys [begin, end) that some query of a query tile can see, given causality and asymmetric ALiBi
// (which hides the keys on one side of a query). begin is rounded down to a multiple of `tile`.
struct KeyRange {
  int begin = 0, end;

  __device__ KeyRange(const HeadBias& bias, int first_position, int rows, int kv_len, int tile)
      : end(kv_len) {
    if (bias.hide_after()) end = min(end, first_position + rows);
    if (bias.hide_before()) begin = max(0, first_position) / tile * tile;
  }

  // Narrows the range to keys at a distance of at most `reach` from one of the queries at positions
  // [first_position, first_position + rows).
  __device__ void Limit(int first_position, int rows, int reach, int tile) {
    begin = max(begin, max(0, first_position - reach) / tile * tile);
    end = min(end, first_position + rows + reach);
  }
};

// The global keys of one sequence, and their bias in one head.
class SequenceGlobals {
 public:
  __device__ SequenceGlobals(const LocalAttentionCall& call, int sequence, int head)
      : bias_(call.global_bias, false, head, call.heads), block_(call.global_block) {
    if (call.global_offsets == nullptr) return;
    first_ = call.global_offsets[sequence];
    count_ = call.global_offsets[sequence + 1] - first_;
  }

  __device__ int first() const { return first_; }  // row of the first one
  __device__ int count() const { return count_; }
  // Block of the query at `position`. Requires count() > 0.
  __device__ int BlockOf(int position) const { return min(position / block_, count_ - 1); }
  // Bias in log2 units of global key `key` for queries in block `block`.
  __device__ float At(int key, int block) const { return bias_.At(key - block); }
  // Returns true only if all queries at positions [first_position, last_position] have the same
  // bias, At(begin, BlockOf(first_position)), for all global keys [begin, end).
  __device__ bool Constant(int begin, int end, int first_position, int last_position) const {
    return bias_.Constant(begin - BlockOf(last_position), end - 1 - BlockOf(first_position));
  }

 private:
  const HeadBias bias_;
  const int block_;
  int first_ = 0, count_ = 0;
};

// The mask of one sequence (kernels/attention/mask.h): for each key, ranges of queries that do not
// see it.
class SequenceMask {
 public:
  __device__ SequenceMask(const AttentionCall& call, int s)
      : columns_(call.mask), tiles_(call.mask_tiles) {
    if (tiles_ == nullptr) return;
    first_key_ = call.kv_offsets[s];
    tiles_ += FirstMaskTile(first_key_, s);
  }

  __device__ bool any() const { return tiles_ != nullptr; }
  // Visibility of keys [begin, end) to queries [row, row + rows), both counted from the first token
  // of the sequence. Requires begin < end and any() (the call has a mask).
  __device__ TileVisibility View(int begin, int end, int row, int rows) const {
    MaskTile tile = tiles_[begin / kMaskTileKeys];
    for (int i = begin / kMaskTileKeys + 1; i <= (end - 1) / kMaskTileKeys; ++i) {
      tile.Add(tiles_[i]);
    }
    return tile.View(row, row + rows);
  }
  __device__ MaskTile Column(int key) const { return columns_.At(first_key_ + key); }

 private:
  MaskColumns columns_;
  const MaskTile* tiles_;
  int64_t first_key_ = 0;
};

// Upper bound of the number of query tiles for rows_total packed query rows. A query tile has up to
// `rows` queries, all of one sequence.
inline int64_t MaxQueryTiles(int64_t rows_total, int64_t sequences, int64_t rows) {
  return rows_total / rows + sequences;
}

// Kernel launchers. rows_total, max_q_len and max_kv_len are upper bounds of the values that the
// kernels read from device memory.
void AttendF32(const AttentionCall& call, int64_t rows_total, int max_q_len, CudaStream& stream);
void AttendF32Local(const LocalAttentionCall& call, int64_t rows_total, CudaStream& stream);
template <typename T>
void AttendTiled(const AttentionCall& call, int64_t rows_total, CudaStream& stream);
// AttendTiledLocal requires that the bias is not FIRE.
template <typename T>
void AttendTiledLocal(const LocalAttentionCall& call, int64_t rows_total, CudaStream& stream);
// AttendHopper requires an sm_90 device, at least one key, not call.kv_e4m3, call.q_vectors and
// call.kv_vectors set, and scale > 0. head_dim, the saturation distance of a bias table and the
// number of FIRE's knots must not exceed the kHopper limits at the top of this file.
template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, CudaStream& stream);
// NormTiles: number of tiles of kNormTileRows rows. ComputeMaxNorms writes the upper bounds of the
// row norms (see AttentionCall::max_norms) to the array `to` [2, NormTiles(max(q_rows, k_rows)),
// heads] f32 and points call->max_norms to it. Requires packed, 16-byte aligned rows and head_dim
// <= kHopperHeadDim.
int64_t NormTiles(int64_t rows);
template <typename T>
void ComputeMaxNorms(AttentionCall* call, float* to, CudaStream& stream);
// ShortSuits: whether AttendShort supports the call (packed rows only) and is the fastest kernel
// for it.
bool ShortSuits(const AttentionCall& call, int64_t rows_total, int max_kv_len,
                const CudaStream& stream);
template <typename T>
void AttendShort(const AttentionCall& call, int64_t rows_total, int max_q_len, int max_kv_len,
                 CudaStream& stream);
template <typename T>
void AttendFewRows(const AttentionCall& call, int max_q_len, int max_kv_len, CudaStream& stream);

}  // namespace quintet::cuda
