// Checks the tensors of a golden case (recorded outputs of a reference implementation) through the
// Engine: hidden states with requests of kind kEncode, label logits with kClassify, and the
// log-probabilities of the recorded decoder tokens with kScore.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/golden/forward.h"

namespace quintet {

absl::StatusOr<std::vector<TensorResult>> CheckServed(const GoldenCase& c, Model* model);

}  // namespace quintet
