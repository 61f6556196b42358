// The logit and log-probability of a token that must not be chosen.
#pragma once

#include <limits>

namespace quintet {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace quintet
