#include "tools/placement.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

constexpr char kGpu[] = "cuda";
constexpr char kAuto[] = "auto";

// Validator of --device for CLI11: returns an empty string if `name` is a device, otherwise the
// error message.
std::string CheckDevice(const std::string& name) {
  absl::string_view number = name;
  int ordinal = 0;
  if (name == "cpu" || name == kGpu) return "";
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0 &&
      ordinal < 1024) {
    return "";
  }
  return absl::StrCat("expected cpu, cuda or cuda:N, got ", name);
}

// Returns the weight type with this name. nullopt for "auto" (--dtype) and for "" (converted_dtype
// of a model directory that is not converted).
std::optional<WeightType> TypeByName(const std::string& name) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBF16, WeightType::kF16, WeightType::kI8, WeightType::kF8}) {
    if (name == WeightTypeName(type)) return type;
  }
  return std::nullopt;
}

// Whether the device supports weights of this type. A GPU supports all of them.
bool RunsOn(const Placement& placement, WeightType type) {
  return DeviceOrdinal(placement) >= 0 || WeightTypeSupported(type, nullptr);
}

}  // namespace

void AddPlacementFlags(CLI::App* command, Placement* placement) {
  constexpr char kGroup[] = "Model";
  command
      ->add_option("--device", placement->device,
                   "Device to run the model on: cpu, cuda (the first GPU) or cuda:N.")
      ->check(CheckDevice)
      ->type_name("DEVICE")
      ->group(kGroup);
  command
      ->add_option(
          "--dtype", placement->dtype,
          "Type of the GEMM weights: f32, int8, bf16 (GPUs and CPUs that support it), f16 (GPU) or "
          "fp8 (e4m3, GPU). auto: the type of a converted directory if the device supports it, "
          "otherwise f32 on a CPU and bf16 on a GPU. On a GPU, activations are bf16 with int8 and "
          "fp8 weights.")
      ->check(CLI::IsMember({kAuto, "f32", "int8", "bf16", "f16", "fp8"}))
      ->type_name("TYPE")
      ->group(kGroup);
}

int DeviceOrdinal(const Placement& placement) {
  if (placement.device == "cpu") return -1;
  absl::string_view number = placement.device;
  int ordinal = 0;
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal)) return ordinal;
  return 0;
}

WeightType WeightTypeOf(const Placement& placement, const ModelConfig& config) {
  if (const auto given = TypeByName(placement.dtype)) return *given;
  const auto held = TypeByName(config.converted_dtype);
  if (held && RunsOn(placement, *held)) return *held;
  return DeviceOrdinal(placement) < 0 ? WeightType::kF32 : WeightType::kBF16;
}

std::string DtypeFallback(const Placement& placement, const ModelConfig& config) {
  const WeightType type = WeightTypeOf(placement, config);
  if (placement.dtype != kAuto || !config.converted() ||
      config.converted_dtype == WeightTypeName(type)) {
    return "";
  }
  return absl::StrCat("the model directory holds ", config.converted_dtype,
                      " weights, which this CPU does not support: converting them to ",
                      WeightTypeName(type), "; set --dtype to choose another type");
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Placement& placement) {
  std::unique_ptr<Device> device;
  if (const int ordinal = DeviceOrdinal(placement); ordinal >= 0) {
    QT_ASSIGN_OR_RETURN(device, Device::Open(ordinal));
  }
  if (const auto given = TypeByName(placement.dtype); given && !RunsOn(placement, *given)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype: ", placement.dtype, " is not supported on this CPU; use f32, int8 or auto"));
  }
  return device;
}

}  // namespace quintet
