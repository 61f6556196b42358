// Fused embedding: table lookup, scaling and learned positions in one pass. The op also records the
// token ids of the step, which the logits processors read later (kernels/sampling/token_history.h).
#pragma once

#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// y[r] = scale * table[ids[r]] + position_table[positions[r]]
struct EmbeddingArgs {
  // Token ids [rows] i32. Each is in [0, vocab), or is -1 - i and stands for the token
  // next_tokens[i]. Any other value fails a QT_CHECK, so the caller must validate user input first.
  Tensor ids;
  // Optional, [n] i32, dense: token ids that an earlier op on this stream writes. With next_tokens
  // a step can be enqueued before the host knows its input tokens.
  Tensor next_tokens;
  Tensor table;  // [vocab, d] f32|bf16|f16
  float scale = 1.0f;
  Tensor positions;       // [rows] i32, or undefined
  Tensor position_table;  // [positions, d] f32|bf16|f16, or undefined
  Tensor y;               // [rows, d] f32; on a GPU also bf16|f16, and both tables have one dtype
  Tensor history;         // [slots] i32 out, or undefined: history[slots[r]] = token id of row r
  // [rows], pinned host array with a device copy: the KV-cache slot of each row's token. The id of
  // the token is written to history[slot]; if the slot is negative, the id is not recorded.
  std::span<const int32_t> slots;
};
void Embedding(const EmbeddingArgs& args, Stream& stream);

}  // namespace quintet
