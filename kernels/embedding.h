// Fused embedding: lookup, scale and position in one pass. It also records the ids of the step,
// which the logits processors read later (kernels/token_history.h).
#pragma once

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// y[r] = scale * table[ids[r]] + position_table[positions[r]]
struct EmbeddingArgs {
  Tensor ids;  // [rows] i32 in [0, vocab); the caller has checked them, QT_CHECKed here
  // Ids that an earlier op of this stream produces, or undefined: ids[r] = -1 - i stands for
  // chosen[i]. A step can so be queued before the host knows its tokens.
  Tensor chosen;  // [n] i32, dense
  Tensor table;   // [vocab, d] f32|bf16|f16
  float scale = 1.0f;
  Tensor positions;       // [rows] i32, or undefined
  Tensor position_table;  // [positions, d] f32|bf16|f16, or undefined
  Tensor y;               // [rows, d] f32; on a GPU also bf16|f16, and both tables of one type
  Tensor history;         // [slots] i32 out, or undefined: history[slots[r]] = id of row r
  absl::Span<const int32_t> slots;  // [rows] mirrored; negative: that id is not recorded
};
void Embedding(const EmbeddingArgs& args, Stream& stream);

}  // namespace quintet
