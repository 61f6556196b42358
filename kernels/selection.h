// Choice of candidates from logits: log-sum-exp and the exact top K by retrieve-and-rerank, the two-phase selection of LightSeq
// (groups' maxima give a threshold, only what is not below it is ranked), made exact for every K and vocabulary.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// Values from row to row of logits: products write rows at such addresses several times faster than at odd ones (GPT-2's
// vocabulary is odd).
constexpr int64_t LogitsStride(int64_t vocab) { return (vocab + 63) / 64 * 64; }

// out[r] = log(sum(exp(logits[r]))), with the row's maximum taken out first. A row of -inf gives -inf.
struct LogSumExpArgs {
  Tensor logits;  // [rows, vocab] f32
  Tensor out;     // [rows] f32
};
void LogSumExp(const LogSumExpArgs& args, Stream& stream);

// For each request the K best of its rows' values, where the value of (row, token) is
//   fl(fl(scores[row, token] - row_shift[row]) + row_bias[row])   (either term absent: not applied).
// Order: value descending, then flat index (row within the request * vocab + token) ascending; equal to a stable full sort.
// Entries of -inf come only when fewer than K others exist. NaN counts as -inf. When rows * vocab < K the tail is filled with value
// -inf and index -1.
struct TopKArgs {
  Tensor scores;                          // [rows, vocab] f32
  Tensor row_shift;                       // [rows] f32 or undefined
  Tensor row_bias;                        // [rows] f32 or undefined: running scores of beams
  // Scores that are logits can be ranked as log-probabilities in the same reading. log_sums: what LogSumExp gives for the rows of
  // all requests. The rows of a request whose log_softmax is not 0 are shifted by them instead of row_shift.
  Tensor log_sums;                        // [rows] f32 out, or undefined
  absl::Span<const int32_t> log_softmax;  // [n], or empty; needs log_sums
  absl::Span<const int32_t> row_offsets;  // [n + 1]: rows of each request
  absl::Span<const int32_t> k;            // [n], each >= 1
  Tensor values;                          // [n, k_max] f32
  Tensor indices;                         // [n, k_max] i32; rows * vocab of one request < 2^31
  Tensor best;                            // [n] i32 or undefined: each request's first index once more
  Tensor scratch;                         // TopKScratchBytes(...) as [bytes] i8
};
void TopK(const TopKArgs& args, Stream& stream);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
