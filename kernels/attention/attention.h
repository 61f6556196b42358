// Attention over packed sequences, per head: out = softmax(scale * q k^T + bias + mask) v, with
// memory linear in the sequence lengths (online softmax over tiles of keys, as in FlashAttention:
// Dao 2022, 2023). One op serves the encoder, prefill, cross-attention and single-token decoding;
// the kernel is chosen by shape.
//
// Keys and values come from packed rows (encoder) or from slots of the paged cache (decoder). In
// cross-attention the beams of a request are the query rows of one sequence; they therefore share
// its keys.
//
// Numerics: softmax statistics are f32. The result of a row that sees no key is 0. Tiles of keys
// start at multiples of a fixed size from the sequence's first key. Therefore, in f32 a row's
// result depends only on its query, keys and position: its bits are the same alone, in any batch,
// and however the queries are split into calls. In bf16 and f16 (GPU only) the kernel, and with it
// the rounding, depends on the number and lengths of the sequences in the call; equal calls give
// equal bits.
#pragma once

#include <span>

#include "kernels/attention/mask.h"
#include "kernels/attention/position_bias.h"
#include "kernels/base/tensor.h"
#include "kernels/ops/kv_cache.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Which keys and values the previously enqueued op may still be writing. A GPU kernel may load all
// other keys and values, and the index arrays (offsets, lengths, slots), before that op has
// finished.
enum class FreshKeys : uint8_t {
  kAny,
  // The previous op may still be writing the last q_len keys and values of each sequence (those of
  // a decoder step's new tokens), but no others. Only the sequence itself reads them.
  kOwn,
  // The caller promises that the previous op writes neither keys nor values that this call reads,
  // as in the cross-attention of a decoder step.
  kNone,
};

// Further keys of each sequence, in the same softmax as its own keys: the global tokens of LongT5
// (Guo et al. 2022). Global key g stands for positions [g * block, (g + 1) * block) of its
// sequence, the last one also for all later positions. Every query sees every global key of its
// sequence. With b = min(position / block, number of global keys - 1), the block of the query, the
// score of a query and global key g is scale * q k^T + bias(g - b).
struct GlobalKeys {
  Tensor k, v;                         // [global_total, heads, head_dim] as q, any row stride
  std::span<const int32_t> offsets;    // [n + 1]; a sequence may have no global keys
  int64_t block = 0;                   // at least 1
  const PositionBias* bias = nullptr;  // of kind kTable
};

struct AttentionArgs {
  Tensor q;    // [q_total, heads, head_dim] f32|bf16|f16, any row stride
  Tensor out;  // [q_total, heads, head_dim] as q, any row stride; may alias q
  std::span<const int32_t> q_offsets;  // [n + 1] first row of each sequence, which may be empty

  // Keys and values, option 1: packed rows. Used when cache is null.
  Tensor k, v;                          // [k_total, heads, head_dim] as q, any row stride
  std::span<const int32_t> kv_offsets;  // [n + 1]
  // Keys and values, option 2: paged KV cache, which accepts the dtype of q (KvCache::Accepts). Key
  // t < kv_lens[s] of sequence s is in cache slot slots[s * slots_stride + t].
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  const int32_t* slots = nullptr;
  int64_t slots_stride = 0;
  std::span<const int32_t> kv_lens;  // [n]

  // Position of each sequence's first query; key t has position t. If this array is empty, the
  // first query has position kv_len - q_len; the last query then has the position of the last key.
  std::span<const int32_t> q_positions;  // [n] or empty
  bool causal = false;                   // a query at position p sees keys t <= p
  FreshKeys fresh = FreshKeys::kAny;
  const PositionBias* bias = nullptr;  // null or kNone: no bias
  const ColumnMask* mask = nullptr;    // hides further pairs; packed rows only
  // Null: none. Packed rows only, with queries at positions of at least 0, and no FIRE bias.
  const GlobalKeys* globals = nullptr;
  float scale = 1.0f;
  Tensor scratch;  // AttentionScratchBytes(...) as [bytes] i8
};
void Attention(const AttentionArgs& args, Stream& stream);
// Returns a size in bytes of AttentionArgs::scratch that is enough for every call with at most
// `rows` query rows and at most `rows` packed keys.
int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim, const Stream& stream);

}  // namespace quintet
