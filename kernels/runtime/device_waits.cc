#include "kernels/runtime/device_waits.h"

#include "kernels/runtime/dispatch.h"

namespace quintet {

namespace cuda {
int64_t WaitedNs(const Device& device);  // device.cu
}

int64_t WaitedNs(const Device& device) {
  if constexpr (kCudaBuilt) return cuda::WaitedNs(device);
  return 0;  // there is no device to wait for
}

}  // namespace quintet
