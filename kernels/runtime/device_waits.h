// Time that the host has spent waiting for a GPU. The rest of a step's time is the host's own work.
#pragma once

#include <cstdint>

#include "kernels/runtime/device.h"

namespace quintet {

// Nanoseconds that the host has spent in Synchronize, WaitForEvent and WaitForH2D of `device` since
// the device was opened. Only the engine thread may call it.
int64_t WaitedNs(const Device& device);

}  // namespace quintet
