// Sampling: Hugging Face's warpers in its order (temperature, top_k, top_p, min_p, typical_p), then
// one token drawn from those they leave.
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
  // No filter leaves fewer tokens than this: 1, or in beam sampling the number of eos ids + 1.
  int32_t keep = 1;
};

// One draw: its row, and the seed, sequence and position that make it reproducible (DrawPlace of
// kernels/draws.h).
struct Draw {
  uint64_t seed = 0;
  int32_t row = 0;        // of the logits; several draws may share a row
  int32_t lens_at = 0;    // lens[lens_at], the length of the history, is the draw's position
  uint32_t sequence = 0;  // index among the request's samples
  WarpOptions warp;
};

// tokens[i] is one of the tokens that the warpers leave, with probability softmax(logits /
// temperature) over those. It is drawn by inversion: the first token at which the running sum of
// probabilities exceeds a uniform draw, tokens taken by descending logit, or by id where neither
// top_k nor top_p filters. Logits of -inf and NaN are never drawn; a row without any other gives
// token 0. Both backends draw the same token, except where rounding of the sums decides.
struct SampleArgs {
  Tensor logits;                   // [rows, vocab] f32
  absl::Span<const Draw> draws;    // [n] mirrored
  absl::Span<const int32_t> lens;  // mirrored: lengths of histories
  Tensor tokens;                   // [n] i32 out
  Tensor chosen;                   // [rows] i32 out, or undefined: the same tokens, by row
  Tensor scratch;                  // SampleScratchBytes(...) as [bytes] i8
};
void Sample(const SampleArgs& args, Stream& stream);
int64_t SampleScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
