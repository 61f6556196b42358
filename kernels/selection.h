// Candidates from logits: log-sum-exp, and the exact top K by retrieve-and-rerank. That is the
// two-phase selection of LightSeq (Wang et al. 2021): the smallest of the groups' maxima is a
// threshold, and only what is not below it is ranked. Here it is exact for every K and vocabulary.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// Row stride of a matrix of logits, in elements: the vocabulary rounded up to 64. A product writes
// aligned rows several times faster than unaligned ones, and GPT-2's vocabulary is odd.
constexpr int64_t LogitsStride(int64_t vocab) { return (vocab + 63) / 64 * 64; }

// out[r] = log(sum(exp(logits[r]))), computed relative to the row's maximum. A row of -inf gives
// -inf.
struct LogSumExpArgs {
  Tensor logits;  // [rows, vocab] f32
  Tensor out;     // [rows] f32
};
void LogSumExp(const LogSumExpArgs& args, Stream& stream);

// For each of n requests, the k[i] greatest values among all of its rows, where
//
//     value(row, token) = fl(fl(scores[row, token] - row_shift[row]) + row_bias[row])
//
// and fl rounds to f32; a term whose tensor is undefined is left out. Order: value descending, then
// flat index (row within the request * vocab + token) ascending, which is what a stable full sort
// gives. NaN counts as -inf. Entries of -inf are returned only when fewer than K others exist;
// where rows * vocab < K, the tail is filled with value -inf and index -1.
struct TopKArgs {
  Tensor scores;     // [rows, vocab] f32
  Tensor row_shift;  // [rows] f32, or undefined
  Tensor row_bias;   // [rows] f32, or undefined: beams' running scores
  // Optional, for scores that are logits: log_sums receives LogSumExp of every row in the same pass
  // over the scores. Rows of a request with log_softmax[i] != 0 are then ranked as
  // log-probabilities: their shift is log_sums instead of row_shift.
  Tensor log_sums;                        // [rows] f32 out, or undefined
  absl::Span<const int32_t> log_softmax;  // [n], or empty; needs log_sums
  absl::Span<const int32_t> row_offsets;  // [n + 1] first row of each request
  absl::Span<const int32_t> k;            // [n] each in [1, k_max]
  Tensor values;                          // [n, k_max] f32 out
  Tensor indices;                         // [n, k_max] i32 out: flat indices, so below 2^31
  Tensor best;                            // [n] i32 out, or undefined: a copy of indices[:, 0]
  Tensor scratch;                         // [TopKScratchBytes(...)] i8
};
void TopK(const TopKArgs& args, Stream& stream);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
