// Hugging Face's logits processors, in Hugging Face's order: repetition penalty, no repeated
// n-grams, bad words, minimum of new tokens, forced bos, forced eos, suppressed tokens, tokens
// suppressed at the beginning. They act on raw logits in greedy decoding and sampling, on
// log-probabilities in beam search. (The warpers of sampling are in engine/sampler.h.)
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/options.h"

namespace quintet {

class LogitsProcessors {
 public:
  // `options` outlives the object; its prompt gives P, the prompt's length, and P + max_new_tokens
  // is M, the greatest length.
  LogitsProcessors(const DecodingOptions& options, int64_t vocab);

  // Whether Apply would change anything for a history of `length` tokens.
  bool Acts(int64_t length) const;

  // Changes `row` [vocab] in place. `history`: decoder ids so far, prompt included. `scratch`
  // [history] is overwritten. Thread safe.
  void Apply(absl::Span<const int32_t> history, absl::Span<float> row, float* scratch) const;

 private:
  void PenalizeRepetition(absl::Span<const int32_t> history, absl::Span<float> row,
                          float* scratch) const;
  void BanRepeatedNgrams(absl::Span<const int32_t> history, absl::Span<float> row) const;
  void BanBadWords(absl::Span<const int32_t> history, absl::Span<float> row) const;
  bool BansEos(int64_t length) const { return length - prompt_len_ < options_.min_new_tokens; }
  bool ForcesBos(int64_t length) const { return options_.forced_bos_token_id >= 0 && length == 1; }
  bool ForcesEos(int64_t length) const {
    return !options_.forced_eos_token_ids.empty() && length == max_len_ - 1;
  }
  bool AtBegin(int64_t length) const {
    return !options_.begin_suppress_tokens.empty() && length == begin_len_;
  }

  const DecodingOptions& options_;
  int64_t vocab_, prompt_len_, max_len_;
  int64_t begin_len_;  // history length at which begin_suppress_tokens act
};

}  // namespace quintet
