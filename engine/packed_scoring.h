// Scores the targets of one prompt with a causal model in encoder batches: the input is the prompt
// once, followed by all targets. The position ids of every target continue those of the prompt, and
// an attention mask hides each target's tokens from the other targets (FlashMask's shared question,
// arXiv 2410.01359). The KV cache is not used.
//
// Targets that do not fit into one encoder batch are split into parts; each part encodes the prompt
// again. The split depends only on the request and on max_encode_tokens. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/input_batch.h"

namespace quintet {

class PackedScoring {
 public:
  // Options of a scoring request that change the causal attention mask.
  struct AttentionScope {
    // Sliding window in tokens: each token attends to itself and the window - 1 tokens before it;
    // 0: unlimited. With a window, a key near the end of the prompt is visible to a different range
    // of rows in each target, but the mask holds only one range per key. Targets therefore cannot
    // share the prompt: each target is an input of its own, with its own copy of the prompt.
    int64_t window = 0;
    // Bidirectional attention within the prompt.
    bool prefix_lm = false;
  };

  // `prompt` and all targets must have at least one token. `targets` must outlive this object. A
  // part (the prompt and the targets of one encoder batch) has at most `max_tokens` rows, unless a
  // single target with its prompt needs more.
  PackedScoring(std::vector<int32_t> prompt, std::span<const std::vector<int32_t>> targets,
                AttentionScope scope, int64_t max_tokens);

  // Number of rows of the largest part (the prompt and the targets of one encoder batch).
  int64_t max_part_tokens() const { return max_part_tokens_; }

  bool done() const { return next_ == static_cast<int64_t>(targets_.size()); }
  // Adds the inputs of the next part (as many targets as fit into one encoder batch) to `batch`.
  void AddTo(InputBatch* batch);
  // One token to score in the part that was added last: the hidden state of the part's row `row`
  // predicts `token`, a token of target `item`. predictions() lists all these tokens, target by
  // target.
  struct Prediction {
    int32_t row, item, token;
  };
  std::span<const Prediction> predictions() const { return predictions_; }
  // Moves on to the next part: the prompt with the next targets, as one batch. Must be called once
  // for each part, after the part has been scored.
  void Advance() { next_ = part_end_; }

 private:
  int64_t PartEnd(int64_t begin, int64_t* tokens) const;
  void AddPrompt(InputBatch* batch) const;
  void AddTarget(InputBatch* batch, int64_t item, int32_t prompt_row, int32_t part_row);

  std::vector<int32_t> prompt_;
  std::span<const std::vector<int32_t>> targets_;
  AttentionScope scope_;
  int64_t max_tokens_, max_part_tokens_ = 0;
  int64_t next_ = 0, part_end_ = 0;  // indices in targets_
  std::vector<Prediction> predictions_;
};

}  // namespace quintet
