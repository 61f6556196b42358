// Turns raw logits of task heads into answers, as Hugging Face's pipelines do: question-answering
// spans from start and end logits, probabilities from label logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/config/config.h"

namespace quintet {

struct AnswerSpan {
  int64_t first = 0, last = 0;  // tokens, inclusive
  // Probability of the span: softmax(start logits)[first] * softmax(end logits)[last]. Each softmax
  // is over the tokens of the context only.
  double probability = 0;
};

// Returns up to `top_k` spans, most probable first; among equally probable spans, the one that
// starts earlier, then the one that ends earlier. A span is within [context_begin, context_end) and
// has at most max_tokens tokens. `logits` is [tokens, 2]: column 0 for starts, column 1 for ends.
std::vector<AnswerSpan> BestSpans(std::span<const float> logits, int64_t context_begin,
                                  int64_t context_end, int64_t max_tokens, int64_t top_k);

// Softmax of one row of logits, computed in double.
std::vector<double> Softmax(std::span<const float> logits);

// Label probabilities of one text, as in Hugging Face's text-classification pipeline: softmax for
// exclusive labels, sigmoid for independent labels. Regression values are returned unchanged.
std::vector<double> LabelProbabilities(std::span<const float> logits, LabelKind kind);

}  // namespace quintet
