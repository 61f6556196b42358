// Checks the tensors of a golden case through the Engine: hidden states by kEncode, labels by
// kClassify, and the log-probabilities of the recorded decoder tokens by kScore.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/forward.h"

namespace quintet {

absl::StatusOr<std::vector<TensorResult>> CheckServed(const GoldenCase& c, Model* model);

}  // namespace quintet
