// One call of attention as its kernels see it: AttentionArgs with device addresses and strides in
// elements, and how a block finds its sequence, its queries and its keys. Lengths are read here, on
// the device, so that a captured launch serves other lengths later.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_bias.cuh"
#include "kernels/cuda.cuh"

namespace quintet::cuda {

// What attention_decode.cu takes, where keys and values can be read by 16 bytes: sequences of up to
// this many queries, with heads up to this size.
constexpr int kFewRows = 16;
constexpr int kFewRowsHeadDim = 128;
// What attention_short.cu takes: heads up to this size.
constexpr int kShortHeadDim = 64;
// What attention_hopper.cu takes: heads up to this size, bias tables that saturate by this
// distance, FIRE's networks with so many knots.
constexpr int kHopperHeadDim = 128;
constexpr int kHopperSaturation = 256;
constexpr int kHopperKnots = 64;

// n / divisor for 0 <= n < 2^31 by a multiplication (Granlund and Montgomery, 1994).
struct Divisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d) / d + 1);
  }
  __device__ uint32_t Quotient(uint32_t n) const { return (__umulhi(multiplier, n) + n) >> shift; }
};

// Of so many packed rows one magnitude is kept.
constexpr int kMagnitudeRows = 64;

struct AttentionCall {
  const void* q = nullptr;
  void* out = nullptr;
  int64_t q_rows = 0, q_row = 0, q_head = 0, out_row = 0, out_head = 0;  // q_rows: their number
  const int32_t* q_offsets = nullptr;                                    // [sequences + 1]
  const int32_t* q_positions = nullptr;  // [sequences], or null: kv_len - q_len

  // Key row r of head h begins at k + h * k_head + r * k_row. Packed: r counts rows. In a cache: k
  // is the layer's first chunk, and r counts head_dim values from there on.
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t k_row = 0, k_head = 0, v_row = 0, v_head = 0;
  int64_t k_rows = 0;                   // their number, packed
  const int32_t* kv_offsets = nullptr;  // [sequences + 1], packed
  const int32_t* kv_lens = nullptr;     // [sequences], cache
  const int32_t* slots = nullptr;       // [sequences, slots_stride], cache
  int64_t slots_stride = 0;
  int slots_len = 0;  // of a sequence's slots may be read, whatever its length
  Divisor page_size;
  uint32_t page_rows = 0;  // key rows from page to page

  int sequences = 0, heads = 0, head_dim = 0;
  int few_rows = 0;  // sequences of up to this many queries are another kernel's
  // Rows begin and end on 16-byte boundaries: of q and out, of k and v.
  bool q_vectors = false, kv_vectors = false;
  bool causal = false;
  FreshKeys fresh = FreshKeys::kAny;
  float scale = 1.0f;
  BiasTables bias;
  MaskColumns mask;
  const MaskTile* mask_tiles = nullptr;  // null: there is no mask
  // The largest |q|, then the largest |k|, of each kMagnitudeRows packed rows and each head, [2,
  // magnitude_tiles, heads]; null: nobody has looked.
  const float* magnitudes = nullptr;
  int64_t magnitude_tiles = 0;
};

// One sequence of a call. Tables are read past the L1 cache: a kernel may do so before its
// WaitForInputs.
struct Sequence {
  int index;
  int first_row, q_len;
  int kv_len;
  int position;  // of the first query

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

// Rows of a sequence's keys and values.
struct KeyRows {
  const int32_t* slots;  // null: packed, or no keys at all
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

// A block of `rows` queries of one sequence. Blocks are counted over all sequences in order; those
// of a causal sequence from its end, since the last queries see the most keys. Offsets are read as
// by Sequence.
struct QueryBlock {
  int sequence = -1;  // -1: there are not so many blocks
  int row = 0;        // of the first query in its sequence

  QueryBlock() = default;
  __device__ QueryBlock(int sequence, int row) : sequence(sequence), row(row) {}
  __device__ QueryBlock(const AttentionCall& call, int index, int rows) {
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

// The keys that some query of a block can see: [begin, end).
struct KeyRange {
  int begin = 0, end;

  __device__ KeyRange(const HeadBias& bias, int first_position, int rows, int kv_len, int tile)
      : end(kv_len) {
    if (bias.hide_after()) end = min(end, first_position + rows);
    if (bias.hide_before()) begin = max(0, first_position) / tile * tile;
  }
};

// The column mask of one sequence.
class SequenceMask {
 public:
  __device__ SequenceMask(const AttentionCall& call, int s)
      : columns_(call.mask), tiles_(call.mask_tiles) {
    if (tiles_ == nullptr) return;
    first_key_ = call.kv_offsets[s];
    tiles_ += FirstMaskTile(first_key_, s);
  }

  __device__ bool any() const { return tiles_ != nullptr; }
  // Keys [begin, end), of which there are some, and queries at positions [row, row + rows); there
  // is a mask.
  __device__ TileView View(int begin, int end, int row, int rows) const {
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

// Most blocks of `rows` queries that QueryBlock can find among rows_total packed queries.
inline int64_t MostQueryBlocks(int64_t rows_total, int64_t sequences, int64_t rows) {
  return rows_total / rows + sequences;
}

// The kernels' launchers; rows_total and max_... bound what the kernels find in q_offsets and
// lengths.
void AttendF32(const AttentionCall& call, int64_t rows_total, int max_q_len, Stream& stream);
template <typename T>
void AttendTiled(const AttentionCall& call, int64_t rows_total, Stream& stream);
// Some keys, vectors, scale > 0, the rest within kHopper...; on a device of sm_90.
template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, Stream& stream);
// Fills the call's magnitudes into `to` [2 * MagnitudeTiles(..) * heads]; packed rows of vectors,
// head_dim up to kHopperHeadDim.
int64_t MagnitudeTiles(int64_t rows);
template <typename T>
void MeasureMagnitudes(AttentionCall* call, float* to, Stream& stream);
// Packed rows, as far as ShortSuits.
bool ShortSuits(const AttentionCall& call, int64_t rows_total, int max_kv_len,
                const Device& device);
template <typename T>
void AttendShort(const AttentionCall& call, int64_t rows_total, int max_q_len, int max_kv_len,
                 Stream& stream);
template <typename T>
void AttendFewRows(const AttentionCall& call, int max_q_len, int max_kv_len, Stream& stream);

}  // namespace quintet::cuda
