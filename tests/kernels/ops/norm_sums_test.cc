#include "kernels/ops/norm_sums.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr float kSumsEps = 1e-3f;

// The sums in double, [ranges, d].
std::vector<double> ReferenceSums(const std::vector<float>& x, const std::vector<float>& gamma,
                                  const std::vector<RowRange>& ranges) {
  const size_t d = gamma.size();
  std::vector<double> sums(ranges.size() * d, 0.0);
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (int32_t r = ranges[i].begin; r < ranges[i].end; ++r) {
      const float* row = x.data() + static_cast<size_t>(r) * d;
      double squares = 0;
      for (size_t c = 0; c < d; ++c) squares += double{row[c]} * double{row[c]};
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(d) + double{kSumsEps});
      for (size_t c = 0; c < d; ++c) sums[i * d + c] += double{row[c]} * scale * double{gamma[c]};
    }
  }
  return sums;
}

TEST_CASE("sums of normed rows equal the reference in double", "[norm]") {
  const std::vector<RowRange> ranges = {{0, 1}, {3, 4}, {1, 33}, {40, 119}, {2, 18}, {0, 120}};
  for (int64_t d : {1, 7, 32, 100, 768, 2049}) {
    RandomData random(static_cast<uint32_t>(d));
    std::vector<float> x = random.Values(120 * d, 2.0f);
    std::fill_n(x.begin() + 3 * d, d, 0.0f);  // eps keeps the norm of a row of zeros finite
    const std::vector<float> gamma = random.Values(d, 1.5f);
    const std::vector<double> expected = ReferenceSums(x, gamma, ranges);
    ForEachBackend([&](TestBackend& backend) {
      const Tensor y = backend.Poisoned(DType::kF32, {static_cast<int64_t>(ranges.size()), d});
      RmsNormSums({.x = backend.Put(x, {120, d}),
                   .gamma = backend.Put(gamma, {d}),
                   .ranges = backend.Plan(ranges),
                   .y = y,
                   .eps = kSumsEps},
                  backend.stream());
      const std::vector<float> got = backend.Floats(y);
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
        worst = error <= worst ? worst : error;
      }
      CHECK(worst < 5e-5);  // sums reach 100
    });
  }
}

TEST_CASE("a sum of normed rows has the same bits alone and with others", "[norm]") {
  constexpr int64_t kRows = 70, kWidth = 45;
  RandomData random(9);
  const std::vector<float> x = random.Values(kRows * kWidth), gamma = random.Values(kWidth);
  const std::vector<RowRange> ranges = {{0, 16}, {16, 32}, {32, 70}};
  ForEachBackend([&](TestBackend& backend) {
    const Tensor rows = backend.Put(x, {kRows, kWidth}), weights = backend.Put(gamma, {kWidth});
    const auto run = [&](const std::vector<RowRange>& of) {
      const Tensor y = backend.Poisoned(DType::kF32, {static_cast<int64_t>(of.size()), kWidth});
      RmsNormSums({.x = rows, .gamma = weights, .ranges = backend.Plan(of), .y = y},
                  backend.stream());
      return backend.Floats(y);
    };
    std::vector<float> alone;
    for (const RowRange& range : ranges) {
      const std::vector<float> sum = run({range});
      alone.insert(alone.end(), sum.begin(), sum.end());
    }
    CHECK(run(ranges) == alone);
  });
}

}  // namespace
}  // namespace quintet
