// Sampling: Hugging Face's warpers in its order (temperature, top_k, top_p, min_p, typical_p), then
// one token from what they leave.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

struct WarpOptions {
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f, min_p = 0.0f, typical_p = 1.0f;
  int32_t keep = 1;  // no filter leaves fewer: 1, or number of eos ids + 1 in beam sampling
};

// One draw: from which row, and what it depends on besides (kernels/draws.h).
struct Draw {
  uint64_t seed = 0;
  int32_t row = 0;        // of the logits; several draws may be from one
  int32_t lens_at = 0;    // where in `lens` the history's length is: the draw's position
  uint32_t sequence = 0;  // of a request's samples
  WarpOptions warp;
};

// tokens[i]: a token that the warpers leave, with probability softmax(logits / temperature) among
// those: the first, in the order of their values (by id where neither top_k nor top_p filter), at
// which the sum of probabilities passes a uniform draw. Entries of -inf and NaN are never drawn; a
// row of nothing else gives 0. Both backends draw the same but for sums that differ in rounding.
struct SampleArgs {
  Tensor logits;                   // [rows, vocab] f32
  absl::Span<const Draw> draws;    // [n] mirrored
  absl::Span<const int32_t> lens;  // mirrored
  Tensor tokens;                   // [n] i32
  Tensor chosen;                   // [rows] i32 or undefined: the tokens once more, by row
  Tensor scratch;                  // SampleScratchBytes(...) as [bytes] i8
};
void Sample(const SampleArgs& args, Stream& stream);
int64_t SampleScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
