// Hugging Face's logits processors as data: rules that change a row of logits before a token is
// chosen from it. Rules that depend on a sequence's tokens read them from the stream's memory
// (kernels/token_history.h), so that a step can be queued before the host knows the tokens of the
// one before.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/host_device.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"
#include "kernels/token_history.h"

namespace quintet {

// Entries [begin, end) of LogitRulesArgs::tokens.
struct TokenRange {
  int32_t begin = 0, end = 0;

  QT_HOST_DEVICE bool empty() const { return begin == end; }
  bool operator==(const TokenRange&) const = default;
};

// The rules of one row. They act in the order of these fields.
struct RowRules {
  int32_t row = 0;          // of the logits
  int32_t sequence = 0;     // of the history
  int32_t keep = 0;         // not 0: first copy the row to the same row of `kept`
  int32_t log_softmax = 0;  // not 0: the row becomes row - log_sums[row]
  // Each token that the history holds, once: logit x becomes x * penalty if x < 0, else x /
  // penalty.
  float repetition_penalty = 1.0f;
  // n > 0: bans every token that would complete an n-gram that the history already holds.
  int32_t ngram = 0;
  // Bad words. The range holds a pair (begin, end) for each word, its token ids at these places
  // counted from the range's begin. A word's last token is banned when the history ends with the
  // word's other tokens.
  TokenRange words;
  // Not empty: the logits of these tokens become 0 and all others -inf.
  TokenRange forced;
  TokenRange banned;  // the logits of these tokens become -inf

  bool operator==(const RowRules&) const = default;
};

struct LogitRulesArgs {
  Tensor logits;                     // [rows, vocab] f32, changed in place
  absl::Span<const RowRules> rules;  // [n] mirrored; no two of one row
  absl::Span<const int32_t> tokens;  // mirrored: what the rules' ranges point into
  TokenHistory history;
  Tensor log_sums;  // [rows] f32, or undefined when no rule has log_softmax
  Tensor kept;      // [rows, vocab] f32 out, or undefined when no rule has keep
  Tensor scratch;   // LogitRulesScratchBytes(...) as [bytes] i8
};
void LogitRules(const LogitRulesArgs& args, Stream& stream);
int64_t LogitRulesScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
