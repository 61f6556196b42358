// Models for fuzzers of requests: the shipped model, and tiny models without tokenizers for the
// code paths that it does not reach.
#pragma once

#include <cstdint>

#include "server/model_host.h"

namespace quintet {

// Returns one of the models, which are loaded at the first call.
const ModelHost& ServedModel(uint8_t which);

}  // namespace quintet
