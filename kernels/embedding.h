// Fused embedding: lookup, scale and position in one pass, and a note of the ids for whoever asks
// later what a sequence holds (kernels/token_history.h).
#pragma once

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// y[r] = scale * table[ids[r]] + position_table[positions[r]]
struct EmbeddingArgs {
  Tensor ids;             // [rows] i32, each in [0, vocab): checked by the caller, QT_CHECKed here
  // Ids that an op before this one leaves in the stream's memory, or undefined: an id of -1 - i stands for chosen[i].
  Tensor chosen;          // [n] i32, dense
  Tensor table;           // [vocab, d] f32|bf16|f16
  float scale = 1.0f;
  Tensor positions;       // [rows] i32, or undefined
  Tensor position_table;  // [positions, d] f32|bf16|f16, or undefined
  Tensor y;               // [rows, d] f32 (GPU: or bf16, f16, and both tables of one type)
  Tensor history;         // [slots] i32 out, or undefined: history[slots[r]] becomes row r's id
  absl::Span<const int32_t> slots;  // [rows] mirrored; below 0: that row's id is not noted
};
void Embedding(const EmbeddingArgs& args, Stream& stream);

}  // namespace quintet
