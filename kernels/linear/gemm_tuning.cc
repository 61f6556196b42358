#include "kernels/linear/gemm_tuning.h"

#include "kernels/base/check.h"
#include "kernels/linear/gemm_tuning_cuda.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

// Unreachable: a build without CUDA has no Device.
[[noreturn]] void NoCuda() { CheckFailed(__FILE__, __LINE__, "this build has no CUDA"); }

}  // namespace

absl::Status AutotuneGemms(Device& device, int64_t budget_us, absl::FunctionRef<void()> work) {
  if constexpr (kCudaBuilt) return cuda::AutotuneGemms(device, budget_us, work);
  NoCuda();
}

GemmAlgorithmChoices& GemmAlgorithmChoicesOf(Device& device) {
  if constexpr (kCudaBuilt) return cuda::GemmAlgorithmChoicesOf(device);
  NoCuda();
}

const std::string& DeviceKind(const Device& device) {
  if constexpr (kCudaBuilt) return cuda::DeviceKind(device);
  NoCuda();
}

}  // namespace quintet
