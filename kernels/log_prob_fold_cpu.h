// Logits of a panel folded into what is known of a row (log_prob_cpu.cc). Not for other rooms.
#pragma once

#include <cstdint>

namespace quintet::cpu {

// One candidate of a row. Better: the higher logit, among equals the lower token. NaN counts as
// -inf.
struct TokenLogit {
  float logit;
  int32_t token;
};
inline bool Better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// What is known of a row after some of its logits: max, sum of exp(logit - max), and the best `top`
// candidates, best first.
struct RowSummary {
  float max;
  float sum;
  int32_t count;  // candidates in `best`
};

// Takes 32 more logits, of tokens [token, token + 32); those past the vocabulary are -inf. Aligned
// to 64 bytes. `vocab` bounds the candidates.
void FoldLogits(const float* logits, int32_t token, int32_t vocab, int32_t top, RowSummary* summary,
                TokenLogit* best);
// Takes the summary of later tokens of the same row.
void MergeSummary(const RowSummary& from, const TokenLogit* from_best, int32_t top,
                  RowSummary* summary, TokenLogit* best);

}  // namespace quintet::cpu
