// Hugging Face's logits processors in Hugging Face's order: repetition penalty, no repeated
// n-grams, bad words, minimum of new tokens, forced bos, forced eos, suppressed tokens, tokens
// suppressed at the beginning. They act on raw logits in greedy decoding and sampling, and on
// log-probabilities in beam search. This class turns them into rules for the ApplyLogitsProcessors
// op (kernels/sampling/logits_processors.h); the warpers (temperature, top-p, ...) are in
// kernels/sampling/sampling.h. Immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/options.h"
#include "kernels/sampling/logits_processors.h"

namespace quintet {

class LogitsProcessors {
 public:
  // `options` outlives the object. Below, the history of a sequence is options.prompt followed by
  // its new tokens, of which there are at most max_new_tokens.
  explicit LogitsProcessors(const DecodingOptions& options);

  // Whether the rules change anything for a history of `length` tokens.
  bool Acts(int64_t length) const;
  // The token ids that the token ranges of RulesAt refer to; the same for every length.
  absl::Span<const int32_t> tokens() const { return tokens_; }
  // Returns the rules for a history of `length` tokens. Their token ranges assume that the caller
  // copies tokens() to LogitsProcessorsArgs::tokens from index `base` on. The caller sets row,
  // sequence, keep and log_softmax.
  RowRules RulesAt(int64_t length, int32_t base) const;

 private:
  TokenRange Append(absl::Span<const int32_t> tokens);
  void AppendWords();
  bool BansEos(int64_t length) const { return length - prompt_len_ < options_.min_new_tokens; }
  bool ForcesBos(int64_t length) const { return options_.forced_bos_token_id >= 0 && length == 1; }
  bool ForcesEos(int64_t length) const {
    return !options_.forced_eos_token_ids.empty() && length == max_len_ - 1;
  }
  bool AtBegin(int64_t length) const {
    return !options_.begin_suppress_tokens.empty() && length == begin_len_;
  }

  const DecodingOptions& options_;
  int64_t prompt_len_, max_len_;
  int64_t begin_len_;  // history length at which begin_suppress_tokens act
  std::vector<int32_t> tokens_;
  TokenRange words_, forced_bos_, forced_eos_;
  // Adjacent in tokens_, in this order, so that one range can cover several of them.
  TokenRange eos_, suppressed_, begin_suppressed_;
};

}  // namespace quintet
