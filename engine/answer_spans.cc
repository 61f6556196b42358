#include "engine/answer_spans.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace quintet {

std::vector<double> Softmax(std::span<const float> logits) {
  std::vector<double> values(logits.begin(), logits.end());
  if (values.empty()) return values;
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
  return values;
}

std::vector<double> LabelProbabilities(std::span<const float> logits, LabelKind kind) {
  if (kind == LabelKind::kExclusive) return Softmax(logits);
  std::vector<double> values(logits.begin(), logits.end());
  if (kind == LabelKind::kValues) return values;
  for (double& value : values) value = 1.0 / (1.0 + std::exp(-value));
  return values;
}

std::vector<AnswerSpan> BestSpans(std::span<const float> logits, int64_t context_begin,
                                  int64_t context_end, int64_t max_tokens, int64_t top_k) {
  const int64_t tokens = context_end - context_begin;
  std::vector<float> start_logits, end_logits;
  for (int64_t i = context_begin; i < context_end; ++i) {
    start_logits.push_back(logits[static_cast<size_t>(2 * i)]);
    end_logits.push_back(logits[static_cast<size_t>(2 * i + 1)]);
  }
  const std::vector<double> start = Softmax(start_logits), end = Softmax(end_logits);
  std::vector<AnswerSpan> best;  // sorted, at most top_k
  const auto better = [](const AnswerSpan& a, const AnswerSpan& b) {
    return a.probability > b.probability;
  };
  for (int64_t first = 0; first < tokens; ++first) {
    for (int64_t last = first; last < std::min(tokens, first + max_tokens); ++last) {
      const AnswerSpan span = {context_begin + first, context_begin + last,
                               start[static_cast<size_t>(first)] * end[static_cast<size_t>(last)]};
      if (static_cast<int64_t>(best.size()) == top_k && !better(span, best.back())) continue;
      best.insert(std::upper_bound(best.begin(), best.end(), span, better), span);
      if (static_cast<int64_t>(best.size()) > top_k) best.pop_back();
    }
  }
  return best;
}

}  // namespace quintet
