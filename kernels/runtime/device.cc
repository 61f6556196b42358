#include "kernels/runtime/device.h"

#include "kernels/runtime/dispatch.h"

namespace quintet {

namespace cuda {
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal);  // device.cu
int DeviceCount();
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal) {
  if constexpr (kCudaBuilt) {
    return cuda::OpenDevice(ordinal);
  } else {
    return absl::UnavailableError(
        "this build has no CUDA: nvcc was not found when it was configured");
  }
}

int Device::Count() {
  if constexpr (kCudaBuilt) return cuda::DeviceCount();
  return 0;
}

void Device::RecordError(const char* error) {
  if (status_.ok()) status_ = absl::InternalError(error);
}

}  // namespace quintet
