// Beam sampling with the semantics of Hugging Face: the logits warpers are applied to the
// log-probabilities of each beam, the running score of the beam is added, and K candidates are
// drawn without replacement from the softmax of the resulting values over all tokens of all beams
// of a request.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"
#include "kernels/sampling/sampling.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// One request of a SampleBeams call.
struct BeamDraw {
  Draw draw;          // draw.row is the logits row of the first beam; the other beams follow it
  int32_t rows = 1;   // number of beams, one logits row each
  int32_t entry = 0;  // row of `values` and `indices` that receives the candidates
  int32_t k = 0;      // number of candidates to draw, in [1, k_max]
};

// A candidate is a beam extended by one token that the beam's warpers (filters such as top_k) keep:
//
//     flat index = index of the beam within its request * vocab + token
//     value = warped log-probability + row_bias[row], where `row` is the logits row of the beam
//     key = GumbelKey(value, draw id, flat index)    (kernels/base/random.h)
//
// The result of a request is its k candidates with the greatest keys, by descending key, then by
// ascending flat index. If the request has fewer than k candidates, the tail is filled with value
// -inf and index -1. Both backends draw the same tokens, except where the rounding of sums and
// logarithms decides.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct SampleBeamsArgs {
  Tensor logits;                    // [rows, vocab] f32: log-probabilities
  Tensor row_bias;                  // [rows] f32: running scores of the beams
  std::span<const BeamDraw> draws;  // [n]
  std::span<const int32_t> lens;    // sequence lengths, indexed by Draw::lens_at
  Tensor values;                    // [entries, k_max] f32 out
  Tensor indices;                   // [entries, k_max] i32 out: beam * vocab + token
  Tensor scratch;                   // SampleBeamsScratchBytes(...) as [bytes] i8
};
void SampleBeams(const SampleBeamsArgs& args, Stream& stream);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
