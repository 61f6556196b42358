// Device and weight type of a model: the flags --device and --dtype, which every subcommand that
// runs a model has.
#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/device.h"
#include "models/config/config.h"

namespace quintet {

struct Placement {
  std::string device = "cpu";  // cpu, cuda or cuda:N
  std::string dtype = "auto";  // weight type: auto, f32, bf16, f16, int8 or fp8
};
void AddPlacementFlags(CLI::App* command, Placement* placement);

// Returns the GPU's ordinal, or -1 for the CPU.
int DeviceOrdinal(const Placement& placement);
// Returns the weight type that --dtype selects. auto: the type of a converted model directory if
// the device supports it, otherwise f32 on a CPU and bf16 on a GPU.
WeightType WeightTypeOf(const Placement& placement, const ModelConfig& config);
// Returns a warning if --dtype is auto and the device does not support the type of a converted
// model directory; otherwise an empty string.
std::string DtypeFallback(const Placement& placement, const ModelConfig& config);
// Opens the device of `placement`; null for the CPU. Errors: those of Device::Open;
// INVALID_ARGUMENT if the device does not support the weight type.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Placement& placement);

}  // namespace quintet
