// Log-probabilities of given targets without a [rows, vocab] matrix: the head product is formed in
// tiles, each folded at once into a running (max, sum of exponentials) per row, and the target's
// and the best logits are picked up on the way.
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
  // Optional best alternatives of every row, by (log-probability descending, token ascending): both
  // or none. Which ones these are is decided by the logits, before they round to log-probabilities.
  // Past the vocabulary: -inf and token -1.
  Tensor top_log_probs;  // [rows, top] f32
  Tensor top_tokens;     // [rows, top] i32
  Tensor scratch;        // TargetLogProbScratchBytes(...) as [bytes] i8
};
// Logits are the same bits as Linear would give. A row's result does not depend on the other rows.
void TargetLogProb(const TargetLogProbArgs& args, Stream& stream);
int64_t TargetLogProbScratchBytes(const LinearWeight& head, int64_t rows, int64_t top,
                                  const Stream& stream);

}  // namespace quintet
