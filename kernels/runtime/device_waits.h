// Time that the host has spent waiting for a GPU. The rest of a step's time is the host's own work.
#pragma once

#include <cstdint>

#include "kernels/runtime/device.h"

namespace quintet {

// Nanoseconds spent in Synchronize, WaitForEvent and WaitForH2D since Open. Only the engine
// thread may call it.
int64_t WaitedNs(const Device& device);

}  // namespace quintet
