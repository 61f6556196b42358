#include "engine/logits_processors.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace quintet {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool IsEos(const DecodingOptions& options, int32_t token) {
  const auto& eos = options.eos_token_ids;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

// All tokens but these become impossible, and these certain.
void Force(absl::Span<const int32_t> tokens, absl::Span<float> row) {
  std::fill(row.begin(), row.end(), kNever);
  for (int32_t token : tokens) row[token] = 0.0f;
}

}  // namespace

LogitsProcessors::LogitsProcessors(const DecodingOptions& options, int64_t vocab)
    : options_(options),
      vocab_(vocab),
      prompt_len_(static_cast<int64_t>(options.prompt.size())),
      max_len_(prompt_len_ + options.max_new_tokens) {
  // A forced first token is not the one that begin_suppress_tokens mean.
  const bool forced_first = prompt_len_ == 1 && options.forced_bos_token_id >= 0;
  begin_len_ = prompt_len_ + (forced_first ? 1 : 0);
}

bool LogitsProcessors::Acts(int64_t length) const {
  return options_.repetition_penalty != 1.0f || options_.no_repeat_ngram_size > 0 ||
         !options_.bad_words_ids.empty() || BansEos(length) || ForcesBos(length) ||
         ForcesEos(length) || !options_.suppress_tokens.empty() || AtBegin(length);
}

void LogitsProcessors::Apply(absl::Span<const int32_t> history, absl::Span<float> row,
                             float* scratch) const {
  QT_CHECK_EQ(static_cast<int64_t>(row.size()), vocab_);
  const int64_t length = static_cast<int64_t>(history.size());
  if (options_.repetition_penalty != 1.0f) PenalizeRepetition(history, row, scratch);
  if (options_.no_repeat_ngram_size > 0) BanRepeatedNgrams(history, row);
  if (!options_.bad_words_ids.empty()) BanBadWords(history, row);
  if (BansEos(length)) {
    for (int32_t token : options_.eos_token_ids) row[token] = kNever;
  }
  if (ForcesBos(length)) Force({&options_.forced_bos_token_id, 1}, row);
  if (ForcesEos(length)) Force(options_.forced_eos_token_ids, row);
  for (int32_t token : options_.suppress_tokens) row[token] = kNever;
  if (AtBegin(length)) {
    for (int32_t token : options_.begin_suppress_tokens) row[token] = kNever;
  }
}

void LogitsProcessors::PenalizeRepetition(absl::Span<const int32_t> history, absl::Span<float> row,
                                          float* scratch) const {
  // All are read before any is written: a token that occurs twice is penalised once.
  const float q = options_.repetition_penalty;
  for (size_t i = 0; i < history.size(); ++i) {
    const float x = row[history[i]];
    scratch[i] = x < 0.0f ? x * q : x / q;
  }
  for (size_t i = 0; i < history.size(); ++i) row[history[i]] = scratch[i];
}

void LogitsProcessors::BanRepeatedNgrams(absl::Span<const int32_t> history,
                                         absl::Span<float> row) const {
  const size_t n = static_cast<size_t>(options_.no_repeat_ngram_size);
  if (history.size() < n) return;
  const absl::Span<const int32_t> suffix = history.subspan(history.size() + 1 - n);
  for (size_t i = 0; i + n <= history.size(); ++i) {
    if (std::equal(suffix.begin(), suffix.end(), history.begin() + i)) {
      row[history[i + n - 1]] = kNever;
    }
  }
}

void LogitsProcessors::BanBadWords(absl::Span<const int32_t> history, absl::Span<float> row) const {
  for (const std::vector<int32_t>& word : options_.bad_words_ids) {
    if (word.size() == 1 && IsEos(options_, word[0])) continue;  // min_new_tokens is there for that
    const size_t prefix = word.size() - 1;
    if (prefix > history.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, history.end() - prefix)) row[word.back()] = kNever;
  }
}

}  // namespace quintet
