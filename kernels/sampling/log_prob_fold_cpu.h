// Online log-sum-exp and top-k of one row over tiles of logits. Internal to log_prob_cpu.cc.
#pragma once

#include <cstdint>

namespace quintet::cpu {

// A token and its logit. Better() orders by higher logit, then lower token. A NaN logit is stored
// as -inf.
struct TokenLogit {
  float logit;
  int32_t token;
};
inline bool Better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// Running summary of the logits of a row that have been processed so far. Its top candidates are in
// a separate array `best` [top], best first.
struct RowSummary {
  float max;
  float sum;      // sum of exp(logit - max)
  int32_t count;  // number of valid candidates in `best`
};

// Adds the logits [32] of tokens [token, token + 32) to `summary` and `best` [top]. `logits` is
// aligned to 64 bytes; entries past the vocabulary must be -inf. Only tokens below `vocab` become
// candidates.
void FoldLogits(const float* logits, int32_t token, int32_t vocab, int32_t top, RowSummary* summary,
                TokenLogit* best);
// Merges the summary `from` and its candidates `from_best` into `summary` and `best` [top]. Both
// summaries belong to the same row of logits; every token id of `from` is higher than every token
// id of `summary`.
void MergeSummary(const RowSummary& from, const TokenLogit* from_best, int32_t top,
                  RowSummary* summary, TokenLogit* best);

}  // namespace quintet::cpu
