// How long the host has waited for a GPU: what is left of a step's time is the host's own work.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace quintet {

// In Synchronize, WaitForMark and WaitForUpload since Open. One engine thread, as the device.
int64_t WaitedNs(const Device& device);

}  // namespace quintet
