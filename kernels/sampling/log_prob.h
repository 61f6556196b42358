// Log-probabilities of given target tokens without a [rows, vocab] matrix of logits. The GEMM with
// the language-model head computes a part of the logits at a time (tiles on the CPU, chunks of rows
// on a GPU). Each part is reduced to (max, sum of exponentials), the logit of the target and the
// top logits of each row before the next part overwrites it.
#pragma once

#include "kernels/linear/linear.h"

namespace quintet {

struct TargetLogProbArgs {
  Tensor hidden;                     // [rows, k] f32; on a GPU also bf16|f16
  const WeightView* head = nullptr;  // [vocab, k]
  Tensor bias;                       // [vocab] f32 or undefined
  float alpha = 1.0f;                // logits = alpha * hidden head^T + bias
  Tensor targets;                    // [rows] i32, each in [0, vocab)
  Tensor log_probs;                  // [rows] f32 out: logit[target] - logsumexp(logits)
  // Optional outputs (set both or neither): the `top` best tokens of every row, ordered by
  // descending log-probability, then by ascending token. The tokens are selected by logit, before
  // the rounding to log-probabilities. If top > vocab, the entries past vocab have log-probability
  // -inf and token -1.
  Tensor top_log_probs;  // [rows, top] f32 out
  Tensor top_tokens;     // [rows, top] i32 out
  Tensor scratch;        // TargetLogProbScratchBytes(...) as [bytes] i8
};
// The logits are bitwise equal to the result of Linear. The result of a row does not depend on
// other rows.
void TargetLogProb(const TargetLogProbArgs& args, Stream& stream);
int64_t TargetLogProbScratchBytes(const WeightView& head, int64_t rows, int64_t top,
                                  const Stream& stream);

}  // namespace quintet
