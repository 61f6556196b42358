// The logits warpers (kernels/sampling/sampling.h: temperature and the filters top_k, top_p, min_p,
// typical_p) for one row on the CPU, and the draw of one of the tokens that the filters keep.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/random.h"
#include "kernels/sampling/sampling.h"

namespace quintet {

// A surviving token.
struct WarpedToken {
  int32_t token;
  float value;  // (logit or log-probability) / temperature
};

// Applies the warpers to rows of logits, in scratch memory of the caller. Not thread safe.
class Warper {
 public:
  static int64_t ScratchBytes(int64_t vocab);
  // `scratch` has ScratchBytes(vocab) bytes, is aligned to 8 and must outlive the Warper.
  Warper(void* scratch, int64_t vocab);

  // Returns the tokens of `row` [vocab] that the filters keep. Tokens with value -inf or NaN are
  // never kept. The result is sorted by value descending, then token ascending, if top_k or top_p
  // is on. If both are off, it is sorted by token if options.keep (the number of tokens that each
  // filter keeps at least) is 1; otherwise it is in no particular order. Valid until the next call.
  std::span<const WarpedToken> Warp(std::span<const float> row, const WarpOptions& options);

 private:
  void Divide(std::span<const float> row, float temperature);
  void KeepTopK(size_t k);
  void KeepTopP(float p, size_t keep);
  void KeepMinP(float p, size_t keep);
  void KeepTypical(float mass, size_t keep);
  float Maximum() const;
  // Sets weights_[i] = exp(value - maximum value) for each surviving token i and returns the sum of
  // these weights, added in double.
  double ComputeWeights();

  size_t vocab_, size_ = 0;
  WarpedToken* kept_;  // [vocab]; the first size_ are the surviving tokens
  float* weights_;     // [vocab]
  uint32_t* order_;    // [vocab]
};

// Draws one of the tokens `kept`, which must not be empty, with probability softmax(value).
int32_t DrawToken(std::span<const WarpedToken> kept, const DrawId& draw_id);

}  // namespace quintet
