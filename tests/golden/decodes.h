// The decoded sequences of a golden case, through the Engine: all rows of all option sets share its
// running batch.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/golden_case.h"

namespace quintet {

// A row whose search came closer than this to deciding otherwise may differ: a warning.
constexpr double kNearTie = 1e-4;

struct DecodeResult {
  int64_t equal = 0;                   // rows with the golden's ids and scores
  std::vector<std::string> near_ties;  // "(option set, row)" that differ and may
  std::vector<std::string> failures;   // what differs, where
  double score_error = 0;              // largest of the equal rows
};

absl::StatusOr<DecodeResult> CheckDecodes(const GoldenCase& c, Model* model);

}  // namespace quintet
