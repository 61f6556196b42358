// Hugging Face's logits processors in Hugging Face's order: repetition penalty, no repeated
// n-grams, bad words, minimum of new tokens, forced bos, forced eos, suppressed tokens, tokens
// suppressed at the beginning. They act on raw logits in greedy decoding and sampling, and on
// log-probabilities in beam search. This class turns them into rules for the ApplyLogitsProcessors
// op (kernels/sampling/logits_processors.h); the warpers (temperature, top-p, ...) are in
// kernels/sampling/sampling.h. Immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/options.h"
#include "kernels/sampling/logits_processors.h"

namespace quintet {

class LogitsProcessors {
 public:
  // `options` must outlive this object. In the functions below, the history of a sequence is
  // options.prompt followed by its new tokens; `length` is its number of tokens. At most
  // max_new_tokens are new.
  explicit LogitsProcessors(const DecodingOptions& options);

  // Whether the rules change any logit for a history of `length` tokens.
  bool Acts(int64_t length) const {
    return always_ || length < eos_banned_until_ || length == forced_bos_at_ ||
           length == forced_eos_at_ || length == begin_at_;
  }
  // The token ids to which the token ranges of RulesAt refer; the same for every `length`.
  std::span<const int32_t> tokens() const { return tokens_; }
  // Returns the rules for a history of `length` tokens. Their token ranges assume that the caller
  // copies tokens() to LogitsProcessorsArgs::tokens from index `base` on. The caller must also set
  // the fields row, sequence, keep and log_softmax of the result.
  RowRules RulesAt(int64_t length, int32_t base) const;

 private:
  TokenRange Append(std::span<const int32_t> tokens);
  void AppendWords();

  // The history lengths at which each rule applies. always_: one or more apply at all lengths. eos
  // is banned below length eos_banned_until_. forced_bos, forced_eos and begin_suppress_tokens
  // apply at exactly one length: forced_bos_at_, forced_eos_at_, begin_at_ (-1: never).
  bool always_;
  int64_t eos_banned_until_, forced_bos_at_, forced_eos_at_, begin_at_;

  const DecodingOptions& options_;
  std::vector<int32_t> tokens_;
  TokenRange words_, forced_bos_, forced_eos_;
  // The ranges eos_, suppressed_ and begin_suppressed_ are adjacent in tokens_, in this order;
  // hence one range can cover several of them.
  TokenRange eos_, suppressed_, begin_suppressed_;
};

}  // namespace quintet
