#include "kernels/runtime/device.h"

#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal) {
  if constexpr (kCudaBuilt) {
    return cuda::OpenDevice(ordinal);
  } else {
    return absl::UnavailableError(
        "this build has no CUDA: nvcc was not found when it was configured");
  }
}

void Device::Fail(absl::string_view what) {
  if (status_.ok()) status_ = absl::InternalError(what);
}

}  // namespace quintet
