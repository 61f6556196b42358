// Models for fuzzers of requests: the shipped model, and tiny models without tokenizers for the
// code paths that the shipped model does not reach.
#pragma once

#include <cstdint>

#include "server/model_host.h"

namespace quintet {

// Returns one of three models: number `which` % 3. The first call loads all three.
const ModelHost& ServedModel(uint8_t which);

}  // namespace quintet
