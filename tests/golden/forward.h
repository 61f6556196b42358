// Checks the tensors of a golden case with Model only, without the Engine.
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

// Computed outputs by tensor name. Each is [positions, width], with the positions of all input rows
// one after the other, without padding.
using Outputs = std::map<std::string, std::vector<float>>;

// Returns the error (TensorResult::error) of each output for which the case has a golden tensor.
// Returns INVALID_ARGUMENT if the shapes do not match.
absl::StatusOr<std::vector<TensorResult>> CompareOutputs(const GoldenCase& c,
                                                         const Outputs& outputs);

// Runs all input rows of the case in one packed call, then each row alone in small slices. Returns
// INTERNAL if `same_bits` is set and the bits of a row's outputs differ between the two runs;
// INVALID_ARGUMENT if the case's tensors do not fit the model; NOT_FOUND if no output is recorded.
absl::StatusOr<std::vector<TensorResult>> CheckForward(const GoldenCase& c, bool same_bits,
                                                       Model* model);

// Returns model limits that are large enough to run all rows of the case in one packed call, and to
// decode a few rows at a time with all their beams.
ModelLimits LimitsFor(const GoldenCase& c);

}  // namespace quintet
