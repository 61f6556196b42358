// Targets of one prompt, scored by a causal model in whole inputs: the prompt once, then all
// targets one after another, each at the positions that follow the prompt and hidden from the
// others by a column mask (FlashMask's shared question, arXiv 2410.01359). Nothing is kept in the
// cache.
//
// What does not fit one pass of the model takes several, each of which reads the prompt again. A
// request's parts depend on nothing but the request and the model's limit.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/input_batch.h"

namespace quintet {

class PackedScoring {
 public:
  // What tokens see besides what causality lets them.
  struct AttentionScope {
    // Each token sees itself and the window - 1 before it; 0: all. Keys at the prompt's end then
    // have other readers in each target, so that targets share no prompt: each has an input of its
    // own.
    int64_t window = 0;
    // Tokens of the prompt see the whole prompt.
    bool prefix_lm = false;
  };

  // `prompt` and the targets are not empty; `targets` outlives the object. Parts have at most
  // `max_tokens` rows, unless a single target takes more.
  PackedScoring(std::vector<int32_t> prompt, absl::Span<const std::vector<int32_t>> targets,
                AttentionScope scope, int64_t max_tokens);

  // Rows of the largest part.
  int64_t max_part_tokens() const { return max_part_tokens_; }

  bool done() const { return next_ == static_cast<int64_t>(targets_.size()); }
  // Adds the next part's inputs.
  void AddTo(InputBatch* batch);
  // What its rows are for, target by target: the state of row `row`, counted from the part's first,
  // predicts `token`, which belongs to target `item`.
  struct Prediction {
    int32_t row, item, token;
  };
  absl::Span<const Prediction> predictions() const { return predictions_; }
  // The part added last has been scored.
  void Advance() { next_ = part_end_; }

 private:
  int64_t PartEnd(int64_t begin, int64_t* tokens) const;
  void AddPrompt(InputBatch* batch) const;
  void AddTarget(InputBatch* batch, int64_t item, int32_t prompt_row, int32_t part_row);

  std::vector<int32_t> prompt_;
  absl::Span<const std::vector<int32_t>> targets_;
  AttentionScope scope_;
  int64_t max_tokens_, max_part_tokens_ = 0;
  int64_t next_ = 0, part_end_ = 0;  // targets
  std::vector<Prediction> predictions_;
};

}  // namespace quintet
