// Rules that change a row of logits before a token is chosen from it: Hugging Face's logits
// processors as data. What depends on the history reads it from the stream's memory, so that a
// step's rules do not wait for the tokens of the step before.
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

// The rules of one row, in the order in which they act.
struct RowRules {
  int32_t row = 0;          // of the logits
  int32_t sequence = 0;     // of the history
  int32_t keep = 0;         // not 0: `kept` gets a copy of the row as it was
  int32_t log_softmax = 0;  // not 0: the row becomes row - log_sums[row]
  // Of tokens of the history, once each: x < 0 becomes x * penalty, other values x / penalty.
  float repetition_penalty = 1.0f;
  int32_t ngram = 0;  // n > 0: what would complete n tokens that the history has already is banned
  // Words, as pairs (begin, end) of where their tokens are, counted from the range's begin. The
  // last token of one is banned where the history ends with those before it.
  TokenRange words;
  // Not empty: these become 0 and all others -inf, whatever the rules above say.
  TokenRange forced;
  TokenRange banned;  // these become -inf

  bool operator==(const RowRules&) const = default;
};

struct LogitRulesArgs {
  Tensor logits;                     // [rows, vocab] f32, changed in place
  absl::Span<const RowRules> rules;  // [n] mirrored, of different rows
  absl::Span<const int32_t> tokens;  // mirrored: ids in [0, vocab), and pairs of words
  TokenHistory history;
  Tensor log_sums;  // [rows] f32, or undefined where no row becomes a log_softmax
  Tensor kept;      // [rows, vocab] f32 out, or undefined where no row is kept
  Tensor scratch;   // LogitRulesScratchBytes(...) as [bytes] i8
};
void LogitRules(const LogitRulesArgs& args, Stream& stream);
int64_t LogitRulesScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
