// Sampling: Hugging Face's warpers in its order (temperature, top_k, top_p, min_p, typical_p), and
// draws from a counter-based generator, so that a token depends on its request's seed, sequence and
// position and on nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/options.h"

namespace quintet {

// Philox4x32-10 (Salmon et al. 2011): 128 random bits as a function of a 64-bit key and a 128-bit
// counter.
std::array<uint32_t, 4> Philox(uint64_t key, const std::array<uint32_t, 4>& counter);

// A double in (0, 1) from 64 random bits.
double OpenUnit(uint32_t high, uint32_t low);

// Where a draw stands: equal places give equal draws.
struct DrawPlace {
  uint64_t seed = 0;
  uint32_t sequence = 0;  // of a request's samples
  uint32_t position = 0;  // length of the history
};

struct Weighted {
  int32_t token;
  float value;  // logit, or log-probability
};

struct WarpOptions {
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0: off
  float top_p = 1.0f, min_p = 0.0f, typical_p = 1.0f;
  int32_t keep = 1;  // no filter leaves fewer: 1, or number of eos ids + 1 in beam sampling
};
WarpOptions WarpOptionsOf(const DecodingOptions& options);

// What the warpers leave of one row, reused from row to row so that a step does not allocate. One
// object a thread.
class Warper {
 public:
  // Tokens of `row` [vocab] that survive, with their divided values; -inf (and NaN) entries never
  // do. Sorted by (value descending, token ascending) when a filter needed it, by token otherwise.
  // Valid until the next call.
  absl::Span<const Weighted> Warp(absl::Span<const float> row, const WarpOptions& options);

 private:
  void Divide(absl::Span<const float> row, float temperature);
  void KeepTopK(size_t k);
  void KeepTopP(float p, size_t keep);
  void KeepMinP(float p, size_t keep);
  void KeepTypical(float mass, size_t keep);
  // Sum of exp(value - maximum) in double; weights_[i] gets the terms.
  double Weigh();

  std::vector<Weighted> kept_;
  std::vector<float> weights_;
  std::vector<uint32_t> order_;
};

// One token with probability softmax(value); `kept` is not empty.
int32_t DrawToken(absl::Span<const Weighted> kept, const DrawPlace& place);

// The key whose descending order draws without replacement in proportion to exp(value) (Gumbel's
// trick; -inf stays -inf). `flat` counts the elements drawn from.
double DrawKey(float value, const DrawPlace& place, uint32_t flat);

}  // namespace quintet
