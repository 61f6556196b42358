// Log-sum-exp and exact top-k of logits, by retrieve-and-rerank. The method is the two-phase
// selection of LightSeq (Wang et al. 2021): the vocabulary is split into groups, the maxima of the
// groups give a threshold, and only values at or above the threshold are ranked. This
// implementation is exact for every k and vocabulary size.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Row stride of a matrix of logits, in elements: the vocabulary size rounded up to a multiple
// of 64. A GEMM stores aligned rows several times faster than unaligned ones, and the vocabulary
// size of GPT-2 is odd.
constexpr int64_t LogitsStride(int64_t vocab) { return (vocab + 63) / 64 * 64; }

// out[r] = log(sum(exp(logits[r]))), computed relative to the maximum of the row. If all logits of
// a row are -inf, the result is -inf.
struct LogSumExpArgs {
  Tensor logits;  // [rows, vocab] f32
  Tensor out;     // [rows] f32
};
void LogSumExp(const LogSumExpArgs& args, Stream& stream);

// For each of n requests, finds the k[i] greatest values among all of its rows, where
//
//     value(row, token) = fl(fl(scores[row, token] - row_shift[row]) + row_bias[row])
//
// and fl rounds to f32. If row_shift or row_bias is an undefined tensor, its term is omitted.
// Results are ordered by value descending, then by flat index ascending, as in a stable full sort.
// The flat index is (row within the request) * vocab + token. NaN is treated as -inf. Values of
// -inf are returned only if fewer than k values are greater than -inf. If a request has fewer than
// k values in all (rows * vocab < k), the tail is filled with value -inf and index -1.
//
// The std::span members are pinned host arrays with a device copy (kernels/runtime/stream.h).
struct TopKArgs {
  Tensor scores;     // [rows, vocab] f32
  Tensor row_shift;  // [rows] f32, or undefined
  Tensor row_bias;   // [rows] f32, or undefined: running scores of the beams
  // Optional output, only for scores that are logits: log_sums receives the log-sum-exp of every
  // row, computed in the same pass over the scores. The rows of request i are then ranked by
  // log-probability if log_softmax[i] != 0, that is, log_sums is subtracted from their scores in
  // place of row_shift.
  Tensor log_sums;                       // [rows] f32 out, or undefined
  std::span<const int32_t> log_softmax;  // [n], or empty; requires log_sums
  std::span<const int32_t> row_offsets;  // [n + 1] first row of each request
  std::span<const int32_t> k;            // [n] each in [1, k_max]
  Tensor values;                         // [n, k_max] f32 out
  Tensor indices;                        // [n, k_max] i32 out: flat indices, below 2^31
  Tensor best;                           // [n] i32 out, or undefined: a copy of indices[:, 0]
  Tensor scratch;                        // [TopKScratchBytes(...)] i8
};
void TopK(const TopKArgs& args, Stream& stream);
int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream);

}  // namespace quintet
