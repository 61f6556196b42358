// Where a model runs and in which type: the flags --device and --dtype, the same for every
// subcommand.
#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/linear.h"
#include "models/config.h"

namespace quintet {

struct Placement {
  std::string device = "cpu";  // cpu, cuda or cuda:N
  std::string dtype = "auto";  // of the weights: auto, f32, bf16, f16, int8 or fp8
};
void AddPlacementFlags(CLI::App* command, Placement* placement);

// The number of the GPU; -1: the CPU.
int DeviceOrdinal(const Placement& placement);
// --dtype. auto: the type in which quintet convert wrote the model, where the device computes with
// it; otherwise f32 on a CPU and bf16 on a GPU.
WeightType WeightTypeOf(const Placement& placement, const ModelConfig& config);
// One sentence where auto cannot take the type of a converted directory; else empty.
std::string DtypeFallback(const Placement& placement, const ModelConfig& config);
// Null for the CPU. UNAVAILABLE as Device::Open; INVALID_ARGUMENT: weights of that type do not run
// there.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Placement& placement);

}  // namespace quintet
