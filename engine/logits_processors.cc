#include "engine/logits_processors.h"

#include <algorithm>
#include <span>

namespace quintet {

LogitsProcessors::LogitsProcessors(const DecodingOptions& options)
    : always_(options.repetition_penalty != 1.0f || options.no_repeat_ngram_size > 0 ||
              !options.bad_words_ids.empty() || !options.suppress_tokens.empty()),
      options_(options) {
  const auto prompt_len = static_cast<int64_t>(options.prompt.size());
  eos_banned_until_ = prompt_len + options.min_new_tokens;
  forced_bos_at_ = options.forced_bos_token_id >= 0 ? 1 : -1;
  const int64_t last = prompt_len + options.max_new_tokens - 1;
  forced_eos_at_ = options.forced_eos_token_ids.empty() ? -1 : last;
  // The ids of begin_suppress_tokens are banned only as the first new token that is not forced.
  const int64_t begin = prompt_len + (prompt_len == forced_bos_at_ ? 1 : 0);
  begin_at_ = options.begin_suppress_tokens.empty() ? -1 : begin;
  AppendWords();
  if (options.forced_bos_token_id >= 0) forced_bos_ = Append({&options.forced_bos_token_id, 1});
  forced_eos_ = Append(options.forced_eos_token_ids);
  if (options.min_new_tokens > 0) eos_ = Append(options.eos_token_ids);
  suppressed_ = Append(options.suppress_tokens);
  begin_suppressed_ = Append(options.begin_suppress_tokens);
}

TokenRange LogitsProcessors::Append(std::span<const int32_t> tokens) {
  const auto begin = static_cast<int32_t>(tokens_.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {begin, static_cast<int32_t>(tokens_.size())};
}

// Appends to tokens_ a pair (begin, end) for each bad word, and then the token ids of all words. A
// pair is the range of the word's ids in tokens_. Sets words_ to the range of the pairs.
void LogitsProcessors::AppendWords() {
  const auto& eos = options_.eos_token_ids;
  std::vector<const std::vector<int32_t>*> words;
  for (const std::vector<int32_t>& word : options_.bad_words_ids) {
    // As in Hugging Face, a bad word that is a single eos token is ignored: min_new_tokens is the
    // option that bans the eos.
    const bool lone = word.size() == 1;
    if (lone && std::find(eos.begin(), eos.end(), word[0]) != eos.end()) continue;
    words.push_back(&word);
  }
  tokens_.resize(2 * words.size());
  words_ = {0, static_cast<int32_t>(tokens_.size())};
  for (size_t w = 0; w < words.size(); ++w) {
    const TokenRange range = Append(*words[w]);
    tokens_[2 * w] = range.begin;
    tokens_[2 * w + 1] = range.end;
  }
}

RowRules LogitsProcessors::RulesAt(int64_t length, int32_t base) const {
  const auto at_base = [base](TokenRange range) {
    return TokenRange{range.begin + base, range.end + base};
  };
  RowRules rules;
  rules.repetition_penalty = options_.repetition_penalty;
  rules.ngram = options_.no_repeat_ngram_size;
  rules.words = at_base(words_);
  if (length == forced_bos_at_) rules.forced = at_base(forced_bos_);
  if (length == forced_eos_at_) rules.forced = at_base(forced_eos_);
  // A forced eos overrides min_new_tokens.
  const bool bans_eos = length < eos_banned_until_ && rules.forced.empty();
  rules.banned = at_base({bans_eos ? eos_.begin : suppressed_.begin,
                          length == begin_at_ ? begin_suppressed_.end : suppressed_.end});
  return rules;
}

}  // namespace quintet
