#include "engine/answer_spans.h"

#include <cmath>
#include <random>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("softmax sums to one and survives large logits") {
  const std::vector<double> p = Softmax(std::vector<float>{1000.0f, 1000.0f, 0.0f});
  CHECK(p[0] == Approx(0.5));
  CHECK(p[2] == Approx(0.0));
}

TEST_CASE("label probabilities are softmax, sigmoid or the unchanged values of a regression") {
  const std::vector<float> logits = {1.0f, -2.0f, 0.5f, -1000.0f};
  CHECK(LabelProbabilities(logits, LabelKind::kExclusive) == Softmax(logits));
  const std::vector<double> own = LabelProbabilities(logits, LabelKind::kIndependent);
  const std::vector<double> values = LabelProbabilities(logits, LabelKind::kValues);
  REQUIRE(own.size() == 4);
  REQUIRE(values.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(own[i] == Approx(1.0 / (1.0 + std::exp(-static_cast<double>(logits[i])))));
    CHECK(values[i] == logits[i]);
  }
}

TEST_CASE("best spans equal an exhaustive search") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 50; ++round) {
    const int64_t tokens = 5 + round % 7, begin = 2, end = tokens - 1, longest = 1 + round % 4;
    std::vector<float> logits(static_cast<size_t>(2 * tokens));
    for (float& x : logits) x = normal(random);
    double start_sum = 0, end_sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      start_sum += std::exp(logits[static_cast<size_t>(2 * i)]);
      end_sum += std::exp(logits[static_cast<size_t>(2 * i + 1)]);
    }
    std::vector<AnswerSpan> all;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = i; j < std::min(end, i + longest); ++j) {
        all.push_back({i, j,
                       std::exp(logits[static_cast<size_t>(2 * i)]) / start_sum *
                           std::exp(logits[static_cast<size_t>(2 * j + 1)]) / end_sum});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const AnswerSpan& a, const AnswerSpan& b) {
      return a.probability > b.probability;
    });
    const std::vector<AnswerSpan> best = BestSpans(logits, begin, end, longest, 3);
    REQUIRE(best.size() == std::min<size_t>(3, all.size()));
    for (size_t i = 0; i < best.size(); ++i) {
      CHECK(best[i].first == all[i].first);
      CHECK(best[i].last == all[i].last);
      CHECK(best[i].probability == Approx(all[i].probability));
    }
  }
}

}  // namespace
}  // namespace quintet
