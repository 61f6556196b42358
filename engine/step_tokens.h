// How many new tokens a step may have.
#pragma once

#include <algorithm>
#include <cstdint>

#include "models/model.h"

namespace quintet {

// For the other limits: room for one of every sequence. On a GPU prompts are read as many tokens at
// once as inputs are encoded, since only many fill it.
inline int64_t StepTokens(const ModelLimits& limits, bool on_gpu) {
  return std::max({ModelLimits().max_step_tokens, limits.max_step_sequences,
                   on_gpu ? limits.max_encode_tokens : 0});
}

}  // namespace quintet
