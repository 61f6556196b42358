#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/golden/scores.h"

namespace quintet {
namespace {

TEST_CASE("golden: beam scores are compared relative to their size") {
  // A beam score is the sum of the log-probabilities divided by length^penalty. With a penalty of
  // -1 scores are large: for 24 tokens, 24 times the sum.
  CHECK(ScoresEqual(-450.0006, -450.0));
  CHECK(ScoresEqual(-449.9994, -450.0));
  CHECK_FALSE(ScoresEqual(-450.01, -450.0));
  CHECK_FALSE(ScoresEqual(-449.99, -450.0));
  CHECK(ScoresEqual(-1294.0019, -1294.0));
  CHECK_FALSE(ScoresEqual(-1294.01, -1294.0));
  // For scores close to 0 the absolute tolerance applies, because it is larger than the relative
  // one.
  CHECK(ScoresEqual(-0.50009, -0.5));
  CHECK_FALSE(ScoresEqual(-0.50011, -0.5));
  CHECK_FALSE(ScoresEqual(-20.0006, -20.0));
  CHECK(ScoresEqual(0.0, 0.0));
  // NaN is never equal.
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(ScoresEqual(kNan, -450.0));
  CHECK_FALSE(ScoresEqual(-450.0, kNan));
  CHECK_FALSE(ScoresEqual(-INFINITY, -450.0));
  CHECK_FALSE(ScoresEqual(-450.0, -INFINITY));
}

}  // namespace
}  // namespace quintet
