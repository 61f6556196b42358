// Beams that draw: Hugging Face warps the log-probabilities of each beam, adds the beam's score and
// draws K candidates without replacement from the softmax of all sums.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/sampling.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// The candidates of one request.
struct BeamDraw {
  Draw draw;          // from the first beam's row on
  int32_t rows = 1;   // one a beam
  int32_t entry = 0;  // of the results
  int32_t k = 0;
};

// Of each request's values, those of tokens that the warpers leave plus their rows' biases, the k
// with the greatest keys (DrawKey of kernels/draws.h; the index counts the elements) in the order
// of those, equal ones by index. Where fewer than k are left the tail is filled with value -inf and
// index -1. Both backends draw the same but for sums and logarithms that differ in rounding.
struct SampleBeamsArgs {
  Tensor logits;                     // [rows, vocab] f32: log-probabilities
  Tensor row_bias;                   // [rows] f32: running scores of beams
  absl::Span<const BeamDraw> draws;  // [n] mirrored
  absl::Span<const int32_t> lens;    // mirrored
  Tensor values;                     // [entries, k_max] f32: those of the draws are written
  Tensor indices;                    // [entries, k_max] i32: row within the request * vocab + token
  Tensor scratch;                    // SampleBeamsScratchBytes(...) as [bytes] i8
};
void SampleBeams(const SampleBeamsArgs& args, Stream& stream);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
