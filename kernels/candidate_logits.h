// Gathers the raw logits of the candidates that TopK or SampleBeams found, for log-probabilities in
// results.
#pragma once

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// values[i, j] = source[first_rows[i] + indices[i, j] / vocab, indices[i, j] % vocab], where source
// is `kept` if from_kept[i] != 0 and `logits` otherwise. A negative index gives 0.
struct CandidateLogitsArgs {
  Tensor logits;                         // [rows, vocab] f32
  Tensor kept;                           // [rows, vocab] f32: LogitRulesArgs::kept, or undefined
  absl::Span<const int32_t> first_rows;  // [n] mirrored: row of each request's first beam
  absl::Span<const int32_t> from_kept;   // [n] mirrored
  Tensor indices;                        // [n, k] i32 in the stream's memory
  Tensor values;                         // [n, k] f32 out
};
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);

}  // namespace quintet
