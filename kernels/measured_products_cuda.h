// The functions of measured_products.h in builds with CUDA.
#pragma once

#include "kernels/measured_products.h"

namespace quintet::cuda {

absl::Status MeasureProducts(Device& device, int64_t budget_us, absl::FunctionRef<void()> work);
ProductChoices& ProductChoicesOf(Device& device);
const std::string& DeviceKind(const Device& device);

}  // namespace quintet::cuda
