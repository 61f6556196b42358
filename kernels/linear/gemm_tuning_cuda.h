// The functions of linear/gemm_tuning.h in builds with CUDA.
#pragma once

#include "kernels/linear/gemm_tuning.h"

namespace quintet::cuda {

absl::Status AutotuneGemms(Device& device, int64_t budget_us, absl::FunctionRef<void()> work);
GemmAlgorithmChoices& GemmAlgorithmChoicesOf(Device& device);
const std::string& DeviceKind(const Device& device);

}  // namespace quintet::cuda
