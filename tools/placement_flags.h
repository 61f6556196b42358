// The flags --device, --dtype and --cache-dtype, which every subcommand that runs a model has.
#pragma once

#include "CLI/CLI.hpp"
#include "engine/placement.h"

namespace quintet {

// Sets the device of *placement to auto, the default of --device. ResolveAutoDevice later replaces
// auto by cpu or cuda.
void AddPlacementFlags(CLI::App* command, Placement* placement);
// Replaces alternative names of a data type (fp16, bfloat16, ...) by the names that --dtype uses
// (CanonicalDtype).
CLI::Validator DtypeAliases();

}  // namespace quintet
