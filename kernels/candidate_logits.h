// The logits of candidates that a ranking or a draw has found.
#pragma once

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// values[i, j] = logits[first_rows[i] + indices[i, j] / vocab, indices[i, j] % vocab], of `kept`
// instead where from_kept[i] is not 0; an index below 0 gives 0.
struct CandidateLogitsArgs {
  Tensor logits;                         // [rows, vocab] f32
  Tensor kept;                           // [rows, vocab] f32, or undefined where no entry is of it
  absl::Span<const int32_t> first_rows;  // [n] mirrored
  absl::Span<const int32_t> from_kept;   // [n] mirrored
  Tensor indices;                        // [n, k] i32 in the stream's memory
  Tensor values;                         // [n, k] f32
};
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);

}  // namespace quintet
