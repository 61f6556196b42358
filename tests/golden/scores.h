// When a beam score equals a recorded one.
#pragma once

#include <algorithm>
#include <cmath>

namespace quintet {

// Of length-normalised beam scores: absolute, and relative to the recorded score where that allows
// more. A score is the sum of n log-probabilities / n^length_penalty, so at a penalty of -1 it is n
// times as large as their sum, and its f32 rounding grows alike.
constexpr double kScoreTolerance = 1e-4;
constexpr double kRelativeScoreTolerance = 2e-6;

inline bool ScoresEqual(double got, double recorded) {
  if (!std::isfinite(recorded)) return false;
  const double limit = std::max(kScoreTolerance, kRelativeScoreTolerance * std::abs(recorded));
  return std::abs(got - recorded) <= limit;  // false for NaN
}

}  // namespace quintet
