// The tensors of a golden case, through Model alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/golden_case.h"

namespace quintet {

struct TensorResult {
  std::string name;
  double error = 0;  // max |x - golden| / max |golden| over the compared positions
};

// What was computed, by tensor name: rows packed without padding, [positions of all rows, width].
using Outputs = std::map<std::string, std::vector<float>>;

// Errors of those outputs that the case has a tensor for. INVALID_ARGUMENT when the shapes do not
// fit.
absl::StatusOr<std::vector<TensorResult>> CompareOutputs(const GoldenCase& c,
                                                         const Outputs& outputs);

// Runs all rows in one packed call, then each row alone in small slices and pieces. INTERNAL when
// `same_bits` and a row's bits differ between the two; INVALID_ARGUMENT when the case's tensors do
// not fit the model, or there is none to compare.
absl::StatusOr<std::vector<TensorResult>> CheckForward(const GoldenCase& c, bool same_bits,
                                                       Model* model);

// Limits with room for the case's rows packed, and for decoding a few rows with all their beams.
ModelLimits LimitsFor(const GoldenCase& c);

}  // namespace quintet
