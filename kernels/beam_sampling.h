// Beam sampling as Hugging Face does it: the warpers act on each beam's log-probabilities, the
// beam's running score is added, and K candidates are drawn without replacement from the softmax
// over all beams' sums.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/sampling.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// What is drawn for one request.
struct BeamDraw {
  Draw draw;          // draw.row is the row of the first beam; the others' rows follow it
  int32_t rows = 1;   // beams
  int32_t entry = 0;  // row of `values` and `indices` that receives the candidates
  int32_t k = 0;      // candidates, in [1, k_max]
};

// The value of a token that the warpers leave is its warped log-probability plus its row's bias;
// its key is DrawKey (kernels/draws.h) of the value and of its flat index. Returned are the k
// tokens of a request with the greatest keys, greatest first, equal keys by ascending index. Where
// the warpers leave fewer than k, the tail is filled with value -inf and index -1. Both backends
// draw the same tokens, except where rounding of sums and logarithms decides.
struct SampleBeamsArgs {
  Tensor logits;                     // [rows, vocab] f32: log-probabilities
  Tensor row_bias;                   // [rows] f32: running scores of beams
  absl::Span<const BeamDraw> draws;  // [n] mirrored
  absl::Span<const int32_t> lens;    // mirrored: lengths of histories (Draw::lens_at)
  Tensor values;                     // [entries, k_max] f32 out: entries of the draws
  Tensor indices;                    // [entries, k_max] i32 out: beam * vocab + token
  Tensor scratch;                    // SampleBeamsScratchBytes(...) as [bytes] i8
};
void SampleBeams(const SampleBeamsArgs& args, Stream& stream);
int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
