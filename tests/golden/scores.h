// Defines when a beam score equals a recorded one.
#pragma once

#include <algorithm>
#include <cmath>

namespace quintet {

// Tolerance of length-normalized beam scores: the larger of an absolute limit and a limit relative
// to the recorded score. A score is the sum of n log-probabilities / n^length_penalty. A penalty of
// -1 multiplies the sum by n, and with it the sum's f32 rounding error.
constexpr double kScoreTolerance = 1e-4;
constexpr double kRelativeScoreTolerance = 2e-6;

inline bool ScoresEqual(double got, double recorded) {
  if (!std::isfinite(recorded)) return false;
  const double limit = std::max(kScoreTolerance, kRelativeScoreTolerance * std::abs(recorded));
  return std::abs(got - recorded) <= limit;  // false for NaN
}

}  // namespace quintet
