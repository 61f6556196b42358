// The warpers of one row on the host, and draws from what they leave (kernels/sampling.h says which
// they are).
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/draws.h"
#include "kernels/sampling.h"

namespace quintet {

struct Weighted {
  int32_t token;
  float value;  // logit, or log-probability
};

// What the warpers leave of one row, in memory that is given. Not thread safe.
class Warper {
 public:
  static int64_t ScratchBytes(int64_t vocab);
  // `scratch`: ScratchBytes, aligned to 8.
  Warper(void* scratch, int64_t vocab);

  // Tokens of `row` [vocab] that survive, with their divided values; -inf (and NaN) entries never
  // do. Sorted by (value descending, token ascending) where top_k or top_p filter, by token where
  // they do not and `keep` is 1. Valid until the next call.
  absl::Span<const Weighted> Warp(absl::Span<const float> row, const WarpOptions& options);

 private:
  void Divide(absl::Span<const float> row, float temperature);
  void KeepTopK(size_t k);
  void KeepTopP(float p, size_t keep);
  void KeepMinP(float p, size_t keep);
  void KeepTypical(float mass, size_t keep);
  float Maximum() const;
  // Sum of exp(value - maximum) in double; weights_[i] gets the terms.
  double Weigh();

  size_t vocab_, size_ = 0;
  Weighted* kept_;   // [vocab], of which `size_`
  float* weights_;   // [vocab]
  uint32_t* order_;  // [vocab]
};

// One token with probability softmax(value); `kept` is not empty.
int32_t DrawToken(absl::Span<const Weighted> kept, const DrawPlace& place);

}  // namespace quintet
