// From start and end logits to answers, as Hugging Face's question-answering pipeline chooses them;
// from logits of labels to probabilities.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "models/config.h"

namespace quintet {

struct AnswerSpan {
  int64_t first = 0, last = 0;  // tokens, inclusive
  double probability =
      0;  // softmax(start)[first] * softmax(end)[last], each over the context's tokens
};

// The `top_k` most probable spans of tokens in [context_begin, context_end) of at most max_tokens
// tokens, best first; ties go to the earlier start, then the earlier end. `logits` is [tokens, 2]:
// start, end.
std::vector<AnswerSpan> BestSpans(absl::Span<const float> logits, int64_t context_begin,
                                  int64_t context_end, int64_t max_tokens, int64_t top_k);

// softmax of one row of logits, in double.
std::vector<double> Softmax(absl::Span<const float> logits);

// Probabilities of a text's labels, as in Hugging Face's text-classification pipeline: softmax of
// labels that exclude each other, sigmoids of independent ones; values of a regression as they are.
std::vector<double> LabelProbabilities(absl::Span<const float> logits, LabelKind kind);

}  // namespace quintet
