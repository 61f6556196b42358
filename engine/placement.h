// Where a model runs and in which type: the values of --device and --dtype on the command line, and
// of `device` and `dtype` in Python.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/device.h"
#include "models/config/config.h"

namespace quintet {

struct Placement {
  std::string device = "cpu";  // cpu, cuda or cuda:N; auto until ResolveAutoDevice
  std::string dtype = "auto";  // weight type: auto, f32, bf16, f16, int8 or fp8
};

inline constexpr char kAutoPlacement[] = "auto";
// Names of weight types that --dtype and `dtype` accept, besides kAutoPlacement.
inline constexpr const char* kDtypes[] = {"f32", "int8", "bf16", "f16", "fp8"};

// INVALID_ARGUMENT unless `device` is cpu, cuda or cuda:N with N in [0, 1024).
absl::Status CheckDeviceName(const std::string& device);
// INVALID_ARGUMENT unless `dtype` is auto or one of kDtypes.
absl::Status CheckDtypeName(const std::string& dtype);

// Replaces the device "auto" by "cuda" if the first GPU can be opened, otherwise by "cpu"; other
// devices are unchanged. Returns one line of text for logs, with the reason for the CPU; empty if
// the device was not auto.
std::string ResolveAutoDevice(Placement* placement);

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
