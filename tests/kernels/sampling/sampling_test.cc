#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"
#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/sampling/never.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// If a value is closer than this to the threshold that decides about a token (relative distance),
// rounding may change the decision. This bound covers the rounding errors of a sum of half a
// million f32 exponentials.
constexpr double kNear = 2e-7;

struct Item {
  int32_t token;
  double value;
};

// Reference: draws one token from a row of logits, in double and with full sorts. While drawing, it
// compares values with thresholds (of top-p, min-p, ...); `nearest` is the smallest distance
// between a value and its threshold.
class PlainDraw {
 public:
  PlainDraw(const float* row, int64_t vocab, const Draw& draw, uint32_t position) {
    const WarpOptions& w = draw.warp;
    for (int32_t t = 0; t < vocab; ++t) {
      const float value = row[t] / w.temperature;
      if (value > kNever) items_.push_back({t, double{value}});
    }
    if (items_.empty()) return;
    if (w.top_k > 0) TopK(static_cast<size_t>(w.top_k));
    if (w.top_p < 1.0f) TopP(w.top_p);
    if (w.min_p > 0.0f) MinP(w.min_p);
    if (w.typical_p < 1.0f) Typical(w.typical_p);
    token = Take(UniformAt({draw.seed, draw.sequence, position}));
  }

  int32_t token = 0;
  double nearest = 1.0;

 private:
  void Near(double distance) { nearest = std::min(nearest, std::abs(distance)); }
  void SortByValue() {
    std::stable_sort(items_.begin(), items_.end(),
                     [](const Item& a, const Item& b) { return a.value > b.value; });
  }
  std::vector<double> Probabilities() const {
    double max = items_[0].value, sum = 0;
    for (const Item& i : items_) max = std::max(max, i.value);
    std::vector<double> p;
    for (const Item& i : items_) p.push_back(std::exp(i.value - max));
    for (const double x : p) sum += x;
    for (double& x : p) x /= sum;
    return p;
  }
  void TopK(size_t k) {
    SortByValue();
    if (k >= items_.size()) return;
    const double kth = items_[k - 1].value;
    std::erase_if(items_, [kth](const Item& i) { return i.value < kth; });
  }
  void TopP(double wanted) {
    SortByValue();
    const std::vector<double> p = Probabilities();
    double above = 0;
    size_t stay = 0;
    for (; stay < items_.size() && above < wanted; ++stay) {
      if (stay > 0) Near(above - wanted);
      above += p[stay];
    }
    if (stay < items_.size()) Near(above - wanted);
    items_.resize(stay);
  }
  void MinP(float least) {
    const std::vector<double> p = Probabilities();
    const double bound = double{least} * *std::max_element(p.begin(), p.end());
    std::vector<Item> kept;
    for (size_t i = 0; i < items_.size(); ++i) {
      Near(p[i] / bound - 1);
      if (p[i] >= bound) kept.push_back(items_[i]);
    }
    items_ = kept;
  }
  void Typical(double mass) {
    const std::vector<double> p = Probabilities();
    double entropy = 0;
    for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < p.size(); ++i) {
      order.emplace_back(std::abs(-std::log(p[i]) - entropy), i);
    }
    std::sort(order.begin(), order.end());
    double sum = 0;
    size_t last = 0;
    for (;; ++last) {
      sum += p[order[last].second];
      if (last + 1 == order.size()) break;
      Near(sum - mass);
      if (sum >= mass) break;
    }
    const double bound = order[last].first;
    std::vector<Item> kept;
    for (size_t i = 0; i < p.size(); ++i) {
      const double distance = std::abs(-std::log(p[i]) - entropy);
      // Typical sampling keeps the tokens whose distance from the entropy is at most `bound`. A
      // token with the same logit as the last kept one has exactly the same distance, in any
      // arithmetic: rounding cannot change this decision.
      if (items_[i].value != items_[order[last].second].value) Near(distance - bound);
      if (distance <= bound) kept.push_back(items_[i]);
    }
    items_ = kept;
  }
  int32_t Take(double unit) {
    const std::vector<double> p = Probabilities();
    double sum = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      sum += p[i];
      if (i + 1 < items_.size()) Near(sum - unit);
      if (sum > unit) return items_[i].token;
    }
    return items_.back().token;
  }

  std::vector<Item> items_;  // in draw order
};

enum class SamplingFill { kNormal, kPeaked, kTies, kEqual, kFewFinite, kNothing, kNan, kWide };
constexpr SamplingFill kFills[] = {
    SamplingFill::kNormal,    SamplingFill::kPeaked,  SamplingFill::kTies, SamplingFill::kEqual,
    SamplingFill::kFewFinite, SamplingFill::kNothing, SamplingFill::kNan,  SamplingFill::kWide};

float Entry(SamplingFill fill, int64_t vocab, RandomData& random) {
  const float sum = random.Value() + random.Value() + random.Value() + random.Value();
  switch (fill) {
    case SamplingFill::kNormal:
      return 2.0f * sum;
    case SamplingFill::kPeaked:
      return random.Below(1 + vocab / 10) == 0 ? 14.0f + sum : 2.0f * sum;
    case SamplingFill::kTies:
      return static_cast<float>(random.Below(5));
    case SamplingFill::kEqual:
      return 1.5f;
    case SamplingFill::kFewFinite:
      return random.Below(1 + vocab / 5) == 0 ? sum : kNever;
    case SamplingFill::kNothing:
      return kNever;
    case SamplingFill::kNan:
      return random.Below(4) == 0 ? NAN : sum;
    case SamplingFill::kWide:
      return 60.0f * sum;
  }
  return 0.0f;
}

struct SamplingProblem {
  int64_t vocab = 0, rows = 0, gap = 0;
  std::vector<float> logits;  // row stride vocab + gap
  std::vector<Draw> draws;
  std::vector<int32_t> lens;
};

// All combinations of filters.
WarpOptions RandomWarp(RandomData& random, int64_t vocab) {
  WarpOptions w;
  if (random.Below(2) == 0) w.temperature = 0.3f + 0.1f * static_cast<float>(random.Below(20));
  if (random.Below(2) == 0) {
    w.top_k = static_cast<int32_t>(random.Below(4) == 0 ? 1 + random.Below(vocab + 3)
                                                        : 1 + random.Below(100));
  }
  if (random.Below(2) == 0) w.top_p = 0.05f + 0.05f * static_cast<float>(random.Below(19));
  if (random.Below(3) == 0) w.min_p = 0.01f + 0.05f * static_cast<float>(random.Below(10));
  if (random.Below(3) == 0) w.typical_p = 0.05f + 0.05f * static_cast<float>(random.Below(19));
  return w;
}

SamplingProblem MakeProblem(int64_t vocab, SamplingFill fill, int64_t draws, uint32_t seed) {
  RandomData random(seed);
  SamplingProblem p{.vocab = vocab, .rows = 3, .gap = static_cast<int64_t>(seed % 3)};
  for (int64_t i = 0; i < p.rows * (vocab + p.gap); ++i) {
    p.logits.push_back(Entry(fill, vocab, random));
  }
  for (int i = 0; i < 5; ++i) p.lens.push_back(static_cast<int32_t>(1 + random.Below(1000)));
  for (int64_t i = 0; i < draws; ++i) {
    p.draws.push_back({.seed = 1234567 * static_cast<uint64_t>(random.Below(1 << 20)),
                       .row = static_cast<int32_t>(random.Below(p.rows)),
                       .lens_at = static_cast<int32_t>(random.Below(5)),
                       .sequence = static_cast<uint32_t>(random.Below(16)),
                       .warp = RandomWarp(random, vocab)});
  }
  return p;
}

std::vector<int32_t> Run(const SamplingProblem& p, TestBackend& backend) {
  SampleArgs args;
  args.logits = backend.Put(p.logits, {p.rows, p.vocab});
  args.logits.stride[0] = p.vocab + p.gap;
  args.draws = backend.Plan(p.draws);
  args.lens = backend.Plan(p.lens);
  args.tokens = backend.Poisoned(DType::kI32, {static_cast<int64_t>(p.draws.size())});
  args.scratch = backend.Scratch(SampleScratchBytes(p.vocab, backend.stream()));
  Sample(args, backend.stream());
  return backend.Ints(args.tokens);
}

// Checks the sampled tokens whose choice cannot depend on rounding, because no value of the
// reference is close to a threshold. Returns the number of these tokens.
int64_t CheckProblem(const SamplingProblem& p) {
  std::vector<PlainDraw> plain;
  int64_t sure = 0;
  for (const Draw& draw : p.draws) {
    plain.emplace_back(p.logits.data() + draw.row * (p.vocab + p.gap), p.vocab, draw,
                       static_cast<uint32_t>(p.lens[static_cast<size_t>(draw.lens_at)]));
    if (plain.back().nearest > kNear) ++sure;
  }
  ForEachBackend([&](TestBackend& backend) {
    const std::vector<int32_t> tokens = Run(p, backend);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const WarpOptions& w = p.draws[i].warp;
      INFO("vocab " << p.vocab << " draw " << i << " temperature " << w.temperature << " top_k "
                    << w.top_k << " top_p " << w.top_p << " min_p " << w.min_p << " typical_p "
                    << w.typical_p << " nearest " << plain[i].nearest);
      if (plain[i].nearest > kNear) CHECK(tokens[i] == plain[i].token);
      CHECK((tokens[i] >= 0 && tokens[i] < p.vocab));
    }
  });
  return sure;
}

TEST_CASE("sampling equals full sorts in double: small vocabularies", "[sampling]") {
  uint32_t seed = 1;
  int64_t sure = 0, draws = 0;
  const int64_t each = Pick(40, 12);
  for (const int64_t vocab : Pick<int64_t>({1, 2, 7, 64, 333, 1000, 3000}, {1, 7, 333, 3000})) {
    for (const SamplingFill fill : kFills) {
      sure += CheckProblem(MakeProblem(vocab, fill, each, seed++));
      draws += each;
    }
  }
  CHECK(sure > draws * 9 / 10);
}

TEST_CASE("sampling equals full sorts in double: the vocabularies of T5 and GPT-2", "[sampling]") {
  uint32_t seed = 1000;
  for (const int64_t vocab : {32128, 50257}) {
    for (const SamplingFill fill : kFills)
      CheckProblem(MakeProblem(vocab, fill, Pick(12, 3), seed++));
  }
}

TEST_CASE("sampling equals full sorts in double: the largest vocabulary", "[sampling]") {
  CheckProblem(MakeProblem(256206, SamplingFill::kNormal, Pick(8, 3), 2000));
  CheckProblem(MakeProblem(256206, SamplingFill::kEqual, Pick(4, 2), 2001));
}

TEST_CASE("sampling with a single filter over the whole vocabulary equals full sorts",
          "[sampling]") {
  SamplingProblem p = MakeProblem(32128, SamplingFill::kNormal, 40, 3000);
  for (size_t i = 0; i < p.draws.size(); ++i) {
    WarpOptions& w = p.draws[i].warp;
    w = {};
    if (i % 5 == 1) w.top_k = i % 2 == 0 ? 50 : 700;
    if (i % 5 == 2) w.top_p = 0.9f;
    if (i % 5 == 3) w.min_p = 0.05f;
    if (i % 5 == 4) w.typical_p = 0.6f;
  }
  CHECK(CheckProblem(p) > 30);
}

TEST_CASE("a draw depends only on its row, seed, sequence and position", "[sampling]") {
  SamplingProblem all = MakeProblem(2000, SamplingFill::kNormal, Pick(30, 8), 4000);
  ForEachBackend([&](TestBackend& backend) {
    const std::vector<int32_t> together = Run(all, backend);
    for (size_t i = 0; i < all.draws.size(); ++i) {
      SamplingProblem alone = all;
      alone.draws = {all.draws[i]};
      CHECK(Run(alone, backend)[0] == together[i]);
    }
  });
}

TEST_CASE("Sample also writes the tokens by row", "[sampling]") {
  SamplingProblem p = MakeProblem(100, SamplingFill::kNormal, 2, 5000);
  p.draws[0].row = 2;
  p.draws[1].row = 0;
  ForEachBackend([&](TestBackend& backend) {
    SampleArgs args;
    args.logits = backend.Put(p.logits, {p.rows, p.vocab});
    args.logits.stride[0] = p.vocab + p.gap;
    args.draws = backend.Plan(p.draws);
    args.lens = backend.Plan(p.lens);
    args.tokens = backend.Poisoned(DType::kI32, {2});
    args.next_tokens = backend.Poisoned(DType::kI32, {3});
    args.scratch = backend.Scratch(SampleScratchBytes(p.vocab, backend.stream()));
    Sample(args, backend.stream());
    const std::vector<int32_t> tokens = backend.Ints(args.tokens),
                               chosen = backend.Ints(args.next_tokens);
    CHECK(chosen == std::vector<int32_t>{tokens[1], 0x55555555, tokens[0]});
  });
}

}  // namespace
}  // namespace quintet
