#include "kernels/sampling/warper.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <span>

#include "tests/catch.h"
#include "tests/kernels/sampling/never.h"

namespace quintet {
namespace {

// Applies the sampling filters (temperature, top-k, top-p, ...) to one row of logits at a time with
// a Warper, for which it allocates the scratch memory.
struct OwnWarper {
  std::span<const WarpedToken> Warp(const std::vector<float>& row, const WarpOptions& options) {
    const int64_t vocab = static_cast<int64_t>(row.size());
    scratch.resize(static_cast<size_t>(Warper::ScratchBytes(vocab)) / 8);
    return Warper(scratch.data(), vocab).Warp(row, options);
  }
  std::vector<uint64_t> scratch;
};

std::vector<double> Softmax(const std::vector<float>& row) {
  double sum = 0.0;
  std::vector<double> p;
  for (float x : row) p.push_back(std::exp(static_cast<double>(x)));
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

// Token ids sorted by value descending.
std::vector<size_t> Descending(const std::vector<float>& row) {
  std::vector<size_t> order(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&row](size_t a, size_t b) { return row[a] > row[b]; });
  return order;
}

// Reference: the warpers as in Hugging Face. Each sorts the row and sets rejected logits to -inf.
std::vector<float> ReferenceWarp(std::vector<float> row, const WarpOptions& o) {
  const size_t n = row.size(), keep = o.keep;
  for (float& x : row) x /= o.temperature;
  if (o.top_k > 0) {
    const size_t k = std::min(n, std::max<size_t>(o.top_k, keep));
    const float kth = row[Descending(row)[k - 1]];
    for (float& x : row) x = x < kth ? kNever : x;
  }
  if (o.top_p < 1.0f) {
    const std::vector<double> p = Softmax(row);
    const std::vector<size_t> order = Descending(row);
    double cumulative = 0.0;
    for (size_t i = n; i-- > 0;) {  // ascending
      cumulative += p[order[i]];
      if (cumulative <= 1.0 - o.top_p && i >= keep) row[order[i]] = kNever;
    }
  }
  if (o.min_p > 0.0f) {
    const std::vector<double> p = Softmax(row);
    const std::vector<size_t> order = Descending(row);
    for (size_t i = keep; i < n; ++i) {
      if (p[order[i]] < o.min_p * p[order[0]]) row[order[i]] = kNever;
    }
  }
  if (o.typical_p < 1.0f) {
    const std::vector<double> p = Softmax(row);
    double entropy = 0.0;
    for (double x : p) entropy -= x > 0 ? x * std::log(x) : 0.0;
    std::vector<float> shifted(n);
    for (size_t i = 0; i < n; ++i)
      shifted[i] = -static_cast<float>(std::fabs(-std::log(p[i]) - entropy));
    const std::vector<size_t> order = Descending(shifted);
    double cumulative = 0.0;
    size_t last = 0;
    for (size_t i = 0; i < n; ++i) {
      cumulative += p[order[i]];
      last += cumulative < o.typical_p;
    }
    const float bound = shifted[order[std::min(last, n - 1)]];
    for (size_t i = keep; i < n; ++i) {
      if (shifted[order[i]] < bound) row[order[i]] = kNever;
    }
  }
  return row;
}

TEST_CASE("Philox4x32-10 matches the published test vectors") {
  CHECK(Philox(0, {{0, 0, 0, 0}}) == RandomBits{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  CHECK(Philox(~uint64_t{0}, {{~0u, ~0u, ~0u, ~0u}}) ==
        RandomBits{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  CHECK(Philox(uint64_t{0x299f31d0} << 32 | 0xa4093822,
               {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}) ==
        RandomBits{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("unit draws stay inside (0, 1)") {
  CHECK(OpenUnit(0, 0) > 0.0);
  CHECK(OpenUnit(~0u, ~0u) < 1.0);
}

TEST_CASE("warpers equal the Hugging Face definitions, alone and combined") {
  std::mt19937 random(17);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  const auto chance = [&random] { return random() % 2 == 0; };
  OwnWarper warper;
  int filtered = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<float> row(1 + random() % 200);
    for (float& x : row) x = random() % 9 == 0 ? kNever : normal(random);
    row[random() % row.size()] = 1.0f;
    WarpOptions o;
    if (chance()) o.temperature = 0.2f + static_cast<float>(random() % 30) / 10.0f;
    if (chance()) o.top_k = 1 + random() % 60;
    if (chance()) o.top_p = 0.05f + static_cast<float>(random() % 95) / 100.0f;
    if (chance()) o.min_p = static_cast<float>(random() % 60) / 100.0f;
    if (chance()) o.typical_p = 0.05f + static_cast<float>(random() % 90) / 100.0f;
    o.keep = 1 + random() % 3;
    const std::vector<float> expected = ReferenceWarp(row, o);
    std::vector<float> got(row.size(), kNever);
    for (const WarpedToken& w : warper.Warp(row, o)) got[w.token] = w.value;
    INFO("trial " << trial << " top_k " << o.top_k << " top_p " << o.top_p << " min_p " << o.min_p
                  << " typical " << o.typical_p << " keep " << o.keep);
    REQUIRE(got == expected);
    filtered +=
        std::count(expected.begin(), expected.end(), kNever) > static_cast<int64_t>(row.size()) / 2;
  }
  CHECK(filtered > 500);
}

TEST_CASE("top_k keeps tokens that tie with the k-th best") {
  OwnWarper warper;
  WarpOptions options;
  options.top_k = 2;
  const std::vector<float> row{1.0f, 3.0f, 2.0f, 2.0f, 0.0f};
  CHECK(warper.Warp(row, options).size() == 3);
}

double ChiSquare(const std::vector<int>& counts, const std::vector<double>& p, int draws) {
  double chi = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * draws;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return chi;
}

TEST_CASE("draws follow the softmax, over positions, over sequences and over seeds") {
  const std::vector<float> row{0.0f, 1.0f, -1.0f, 0.5f, 2.0f, -0.3f, 0.9f, 1.7f};
  std::vector<WarpedToken> kept;
  for (size_t i = 0; i < row.size(); ++i) kept.push_back({static_cast<int32_t>(i), row[i]});
  const std::vector<double> p = Softmax(row);
  constexpr int kDraws = 100000;
  for (int over = 0; over < 3; ++over) {
    std::vector<int> counts(row.size());
    for (uint32_t i = 0; i < kDraws; ++i) {
      DrawId draw_id{99, 3, 4};
      if (over == 0) draw_id.position = i;
      if (over == 1) draw_id.sequence = i;
      if (over == 2) draw_id.seed = i;
      ++counts[DrawToken(kept, draw_id)];
    }
    // Tests the frequencies of the drawn tokens. If draws are correct, the chi-squared statistic
    // exceeds 24.3 with a probability of 0.1 % (7 degrees of freedom). Seeds are fixed, so the test
    // is not flaky.
    CHECK(ChiSquare(counts, p, kDraws) < 24.3);
  }
}

TEST_CASE("successive draws are independent") {
  std::vector<WarpedToken> kept;
  for (int32_t i = 0; i < 4; ++i) kept.push_back({i, 0.0f});
  std::vector<int> pairs(16);
  constexpr int kDraws = 32000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    ++pairs[DrawToken(kept, {5, 0, i}) * 4 + DrawToken(kept, {5, 0, i + 1})];
  }
  CHECK(ChiSquare(pairs, std::vector<double>(16, 1.0 / 16), kDraws) < 37.7);  // 15 degrees, 0.1 %
}

TEST_CASE("draws without replacement follow the softmax, then that of the remaining tokens") {
  const std::vector<float> row{0.0f, 1.0f, 2.0f, 0.5f};
  const std::vector<double> p = Softmax(row);
  std::vector<int> counts(16);
  std::vector<double> expected(16, 0.0);
  constexpr int kDraws = 40000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    std::vector<std::pair<double, int>> keys;
    for (uint32_t v = 0; v < 4; ++v) keys.emplace_back(-GumbelKey(row[v], {7, 0, i}, v), v);
    std::sort(keys.begin(), keys.end());
    ++counts[keys[0].second * 4 + keys[1].second];
  }
  double chi = 0.0;
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      if (a == b) {
        REQUIRE(counts[a * 4 + b] == 0);
        continue;
      }
      const double e = p[a] * p[b] / (1.0 - p[a]) * kDraws;
      chi += (counts[a * 4 + b] - e) * (counts[a * 4 + b] - e) / e;
    }
  }
  CHECK(chi < 31.3);  // 11 degrees, 0.1 %
}

TEST_CASE("a value of -inf is drawn after all finite values") {
  CHECK(GumbelKey(kNever, {1, 0, 0}, 0) == -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace quintet
