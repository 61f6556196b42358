// Log-probabilities of given targets without a [rows, vocab] matrix of logits: the product with the
// language-model head is computed in tiles, and each tile is folded at once into a running (max,
// sum of exponentials) per row. The logit of the target and the greatest ones are picked up on the
// way.
#pragma once

#include "kernels/linear.h"

namespace quintet {

struct TargetLogProbArgs {
  Tensor hidden;                       // [rows, k] f32
  const LinearWeight* head = nullptr;  // [vocab, k]
  Tensor bias;                         // [vocab] f32 or undefined
  float alpha = 1.0f;                  // logits = alpha * hidden head^T + bias
  Tensor targets;                      // [rows] i32, each in [0, vocab)
  Tensor log_probs;                    // [rows] f32 out: logit[target] - logsumexp(logits)
  // Optional, both or none: the best alternatives of every row by (log-probability descending,
  // token ascending). They are ranked by their logits, before rounding to log-probabilities. Beyond
  // the vocabulary's size: -inf and token -1.
  Tensor top_log_probs;  // [rows, top] f32 out
  Tensor top_tokens;     // [rows, top] i32 out
  Tensor scratch;        // TargetLogProbScratchBytes(...) as [bytes] i8
};
// Logits are those of Linear, bit for bit. A row's result does not depend on the other rows.
void TargetLogProb(const TargetLogProbArgs& args, Stream& stream);
int64_t TargetLogProbScratchBytes(const LinearWeight& head, int64_t rows, int64_t top,
                                  const Stream& stream);

}  // namespace quintet
