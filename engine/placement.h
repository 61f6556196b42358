// On which device a model runs, with which weight type and with which type of the KV cache: the
// values of --device, --dtype and --cache-dtype on the command line, and of `device`, `dtype` and
// `cache_dtype` in Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/device.h"
#include "models/config/config.h"

namespace quintet {

struct Placement {
  // cpu, cuda, cuda:N, or several GPUs: cuda:N,M,... or cuda:all; auto until ResolveAutoDevice.
  std::string device = "cpu";
  std::string dtype = "auto";        // weight type: auto or one of kDtypes
  std::string cache_dtype = "auto";  // type of the KV cache: auto or one of kCacheDtypes
  // Set by ResolveAutoDevice: the name of the GPU, or the reason why the CPU was chosen. Empty if
  // the user named the device instead of `auto`.
  std::string choice = "";
};

inline constexpr char kAutoPlacement[] = "auto";
// Names of weight types that --dtype and Python's `dtype` accept in addition to kAutoPlacement.
inline constexpr const char* kDtypes[] = {"f32", "int8",      "bf16",    "f16",
                                          "fp8", "int8-w8a8", "fp8-w8a8"};
// Names of types of the KV cache other than kAutoPlacement, which is the type of the activations.
inline constexpr char kFp8Cache[] = "fp8";
inline constexpr const char* kCacheDtypes[] = {kFp8Cache};

// Returns cuda for gpu and cuda:N for gpu:N. Other names are returned unchanged.
std::string CanonicalDevice(const std::string& device);
// Returns INVALID_ARGUMENT unless `device` is auto, cpu, cuda, cuda:N, cuda:N,M,... or cuda:all,
// with different numbers in [0, 1024).
absl::Status CheckDeviceName(const std::string& device);
// Returns INVALID_ARGUMENT unless `dtype` is auto or one of kDtypes.
absl::Status CheckDtypeName(const std::string& dtype);
// Returns INVALID_ARGUMENT unless `dtype` is auto or one of kCacheDtypes.
absl::Status CheckCacheDtypeName(const std::string& dtype);

// Replaces the device "auto" by "cuda" if the first GPU can be opened, otherwise by "cpu", and sets
// placement->choice to the GPU's name or the reason for the CPU. Other devices are unchanged.
// OpenDevice and OpenDevices do the same; to open the device twice would take 0.1 s more.
void ResolveAutoDevice(Placement* placement);
// Returns one line of text for logs, such as "device auto: cuda (NVIDIA H200), dtype bf16"; empty
// if ResolveAutoDevice did not choose the device.
std::string DescribeAutoDevice(const Placement& placement, const ModelConfig& config);

// Opens the device of *placement, and first replaces "auto" as ResolveAutoDevice does; returns null
// for the CPU. Returns the errors of Device::Open, and INVALID_ARGUMENT if there are several
// devices or the device does not support the weight type or the type of the KV cache.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Placement* placement);
// Opens all devices of *placement: one, or with `several` also more GPUs. Otherwise as OpenDevice.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(Placement* placement,
                                                                 bool several);

// Before the functions below are called, the device "auto" must have been replaced.
//
// Returns the GPU's ordinal (the first one's if there are several), or -1 for the CPU.
int DeviceOrdinal(const Placement& placement);
// Whether both have a GPU in common, or both are on the CPU.
bool ShareDevice(const Placement& a, const Placement& b);
// Returns the weight type that placement.dtype selects. For auto this is the type of a converted
// model directory if the device supports that type, otherwise f32 on a CPU and bf16 on a GPU.
WeightType WeightTypeOf(const Placement& placement, const ModelConfig& config);
// Whether placement.cache_dtype selects a KV cache of fp8 (LoadOptions::fp8_cache).
bool HasFp8Cache(const Placement& placement);
// Returns the type of the KV cache as --cache-dtype or --dtype names it: fp8, or the type of the
// activations.
std::string CacheTypeName(const Placement& placement, const ModelConfig& config);
// Returns a warning if the weights get another type than the user expects, otherwise an empty
// string. There are two such cases: placement.dtype is auto and the device does not support the
// weight type of a converted model directory; or the weight type quantises inputs, but every matrix
// has too few inputs for this.
std::string DtypeWarning(const Placement& placement, const ModelConfig& config);

}  // namespace quintet
