// Gathers the raw logits of the candidates that TopK or SampleBeams returned. The engine needs them
// for the log-probabilities in responses.
#pragma once

#include "absl/types/span.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/stream.h"

namespace quintet {

// values[i, j] = source[first_rows[i] + indices[i, j] / vocab, indices[i, j] % vocab], where source
// is `raw_logits` if from_raw[i] != 0 and `logits` otherwise. A negative index gives 0.
//
// The absl::Span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct CandidateLogitsArgs {
  Tensor logits;      // [rows, vocab] f32
  Tensor raw_logits;  // [rows, vocab] f32: LogitsProcessorsArgs::raw_logits, or undefined
  absl::Span<const int32_t> first_rows;  // [n]: logits row of the first beam of each request
  absl::Span<const int32_t> from_raw;    // [n]: 0 or 1
  Tensor indices;                        // [n, k] i32 on the stream's device
  Tensor values;                         // [n, k] f32 out
};
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);

}  // namespace quintet
