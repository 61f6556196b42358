// The flags --device and --dtype, which every subcommand that runs a model has.
#pragma once

#include "CLI/CLI.hpp"
#include "engine/placement.h"

namespace quintet {

// Sets the device of *placement to auto, the default of the flag; ResolveAutoDevice replaces it.
void AddPlacementFlags(CLI::App* command, Placement* placement);
// Replaces other names of a data type (fp16, bfloat16, ...) by those of --dtype (CanonicalDtype).
CLI::Validator DtypeAliases();

}  // namespace quintet
