// Attention in linear memory (online softmax over key tiles, as in FlashAttention; Dao 2022, 2023)
// over packed sequences: out = softmax(scale * q k^T + bias + mask) v, heads apart. One op serves
// the encoder, decoder prefill, cross-attention and single-token decoding; the shapes pick the
// path.
//
// Keys come from packed rows (encoder) or from cache slots (decoder). Beams of one request share
// its cross keys simply by being several query rows of one sequence. Statistics are f32; a row that
// sees no key gives zeros. Key tiles begin at multiples of a fixed size counted from the sequence's
// first key, so a row's result depends on nothing but its own query, its keys and its position: it
// is bit-identical alone, in any batch and in any slicing of the queries. In bf16 and f16, which
// only the GPU has, rounding depends on how many of its sequence's queries, how many sequences and
// how long ones are in the call; it is the same from run to run.
#pragma once

#include "absl/types/span.h"
#include "kernels/attention_mask.h"
#include "kernels/kv_cache.h"
#include "kernels/position_bias.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// Which keys and values the op queued just before Attention may have written; all others, and the
// small arrays, were there before that op. A GPU asks for those while that op still runs.
enum class FreshKeys : uint8_t {
  kAny,
  kOwn,   // of each sequence the last q_len: a decoder's new tokens; no sequence has another's
  kNone,  // cross-attention in a decoder's step
};

struct AttentionArgs {
  Tensor q;    // [q_total, heads, head_dim] f32|bf16|f16, any row stride
  Tensor out;  // [q_total, heads, head_dim] as q, any row stride; may alias q
  absl::Span<const int32_t>
      q_offsets;  // [n + 1] rows of each sequence in q; sequences may be empty

  // Source 1: packed rows, when cache is null.
  Tensor k, v;                           // [k_total, heads, head_dim] as q, any row stride
  absl::Span<const int32_t> kv_offsets;  // [n + 1]
  // Source 2: cache slots. Key t of sequence s is in slot slots[s * slots_stride + t], t <
  // kv_lens[s].
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  const int32_t* slots = nullptr;
  int64_t slots_stride = 0;
  absl::Span<const int32_t> kv_lens;  // [n]

  // Position of the first query row of each sequence, counted with its keys (key t has position t).
  // Empty: kv_len - q_len.
  absl::Span<const int32_t> q_positions;  // [n] or empty
  bool causal = false;                    // a query at position p sees keys t <= p
  FreshKeys fresh = FreshKeys::kAny;
  const PositionBias* bias = nullptr;  // null or kNone: no bias
  const ColumnMask* mask = nullptr;    // hides more pairs; packed rows only
  float scale = 1.0f;
  Tensor scratch;  // AttentionScratchBytes(...) as [bytes] i8
};
void Attention(const AttentionArgs& args, Stream& stream);
// Of up to `rows` queries, and as many packed keys.
int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim, const Stream& stream);

}  // namespace quintet
