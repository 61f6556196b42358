// Sampling: the logits warpers of Hugging Face are applied in the same order as there (temperature,
// top_k, top_p, min_p, typical_p); then one of the surviving tokens is drawn.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Warper parameters. The defaults disable every warper.
struct WarpOptions {
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f, min_p = 0.0f, typical_p = 1.0f;
  // Every filter keeps at least this many tokens: 1, or in beam sampling the number of EOS ids + 1.
  int32_t keep = 1;
};

// One draw. Its random numbers depend only on the DrawId (kernels/base/random.h), which consists of
// `seed`, `sequence` and the current length of the sequence in tokens. That length is element
// `lens_at` of the array `lens` of the call.
struct Draw {
  uint64_t seed = 0;
  int32_t row = 0;        // row of `logits`; several draws may share a row
  int32_t lens_at = 0;    // index into `lens`: lens[lens_at] is DrawId::position
  uint32_t sequence = 0;  // index among the sampled sequences of the request
  WarpOptions warp;
};

// Draws tokens[i] from the tokens of row draws[i].row that survive the warpers, with probability
// softmax(logits / temperature) over those tokens. The draw inverts the cumulative distribution: it
// returns the first token at which the running sum of probabilities exceeds a uniform number. The
// sum runs over tokens by descending logit, or by token id if both top_k and top_p are off. A logit
// of -inf or NaN is never drawn; a row without any other logit gives token 0. Both backends draw
// the same token, except where the rounding of the sums decides.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct SampleArgs {
  Tensor logits;                  // [rows, vocab] f32
  std::span<const Draw> draws;    // [n]
  std::span<const int32_t> lens;  // sequence lengths in tokens, indexed by Draw::lens_at
  Tensor tokens;                  // [n] i32 out
  Tensor next_tokens;  // [rows] i32 out, or undefined: next_tokens[draws[i].row] = tokens[i]
  Tensor scratch;      // SampleScratchBytes(...) as [bytes] i8
};
void Sample(const SampleArgs& args, Stream& stream);
int64_t SampleScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
