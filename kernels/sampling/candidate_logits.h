// Gathers the raw logits of the candidates that TopK or SampleBeams returned. The engine needs them
// for the log-probabilities in responses.
#pragma once

#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// values[i, j] = source[first_rows[i] + indices[i, j] / vocab, indices[i, j] % vocab], where source
// is `raw_logits` if from_raw[i] != 0 and `logits` otherwise. A negative index gives 0.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct CandidateLogitsArgs {
  Tensor logits;      // [rows, vocab] f32
  Tensor raw_logits;  // [rows, vocab] f32: LogitsProcessorsArgs::raw_logits, or undefined
  std::span<const int32_t> first_rows;  // [n]: logits row of the first beam of each request
  std::span<const int32_t> from_raw;    // [n]: 0 or 1
  Tensor indices;                       // [n, k] i32 on the stream's device
  Tensor values;                        // [n, k] f32 out
};
void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream);

}  // namespace quintet
