// Checks the decoded sequences of a golden case through the Engine. Every input row is decoded with
// every option set of the case; all of these requests run in one batch.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/golden_case.h"

namespace quintet {

// Every decision of a search compares scores. If the smallest difference between two compared
// scores in the search of a row is below this value, a result of the row that differs from the
// recorded one is only a warning.
constexpr double kNearTie = 1e-4;

struct DecodeResult {
  int64_t equal = 0;                   // rows with the recorded ids and scores
  std::vector<std::string> near_ties;  // "(option set, row)": different, but allowed
  std::vector<std::string> failures;   // descriptions of differences
  double score_error = 0;              // maximum over the equal rows
};

absl::StatusOr<DecodeResult> CheckDecodes(const GoldenCase& c, Model* model);

}  // namespace quintet
