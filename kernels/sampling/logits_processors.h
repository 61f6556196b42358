// The logits processors of Hugging Face as data: rules that modify a row of logits before a token
// is selected from it. Rules that depend on the tokens of a sequence read them from device memory
// (kernels/sampling/token_history.h), so a step can be enqueued before the host knows the tokens of
// the previous step.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/host_device.h"
#include "kernels/base/tensor.h"
#include "kernels/sampling/token_history.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// A range: elements [begin, end) of LogitsProcessorsArgs::tokens.
struct TokenRange {
  int32_t begin = 0, end = 0;

  QT_HOST_DEVICE bool empty() const { return begin == end; }
  bool operator==(const TokenRange&) const = default;
};

// The rules of one row of logits, applied in the order in which the members are declared. To ban a
// token is to set its logit to -inf. If tokens are forced (`forced` is not empty), only three of
// the rules are applied: `keep` (save a copy of the row before the other rules modify it), `forced`
// and `banned`.
struct RowRules {
  int32_t row = 0;          // row of `logits`
  int32_t sequence = 0;     // row of `history`
  int32_t keep = 0;         // not 0: copy the unmodified row to the same row of `raw_logits`
  int32_t log_softmax = 0;  // not 0: subtract log_sums[row] from the row
  // For each distinct token that the sequence contains so far: its logit x becomes x * penalty if
  // x < 0, else x / penalty.
  float repetition_penalty = 1.0f;
  // n > 0: ban every token that would complete an n-gram that the sequence already contains.
  int32_t ngram = 0;
  // Bad words: the range `words` of LogitsProcessorsArgs::tokens holds one pair (b, e) per word.
  // The word's token ids are the elements [words.begin + b, words.begin + e) of the same array. If
  // the sequence so far ends with all tokens of a word but its last, that last token is banned.
  TokenRange words;
  // Forced tokens. If not empty: set the logits of these tokens to 0 and all other logits to -inf.
  TokenRange forced;
  TokenRange banned;  // ban these tokens

  bool operator==(const RowRules&) const = default;
};

// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct LogitsProcessorsArgs {
  Tensor logits;                    // [rows, vocab] f32, modified in place
  std::span<const RowRules> rules;  // [n], at most one with an effect per row
  std::span<const int32_t> tokens;  // the array that every TokenRange indexes
  TokenHistory history;
  Tensor log_sums;    // [rows] f32, or undefined when no rule has log_softmax
  Tensor raw_logits;  // [rows, vocab] f32 out, or undefined when no rule has keep
  Tensor scratch;     // LogitsProcessorsScratchBytes(...) as [bytes] i8
};
void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, Stream& stream);
int64_t LogitsProcessorsScratchBytes(int64_t vocab, const Stream& stream);

}  // namespace quintet
