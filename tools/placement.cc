#include "tools/placement.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quintet {
namespace {

constexpr char kGpu[] = "cuda";
constexpr char kAuto[] = "auto";

// Empty when it names a device.
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

// nullopt for auto, and for a directory that is not converted.
std::optional<WeightType> TypeByName(const std::string& name) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBF16, WeightType::kF16, WeightType::kI8, WeightType::kF8}) {
    if (name == WeightTypeName(type)) return type;
  }
  return std::nullopt;
}

// A GPU computes with every type.
bool RunsOn(const Placement& placement, WeightType type) {
  return DeviceOrdinal(placement) >= 0 || WeightTypeSupported(type, nullptr);
}

}  // namespace

void AddPlacementFlags(CLI::App* command, Placement* placement) {
  constexpr char kGroup[] = "Model";
  command
      ->add_option("--device", placement->device,
                   "Where the model runs: cpu, cuda (the first GPU) or cuda:N.")
      ->check(CheckDevice)
      ->type_name("DEVICE")
      ->group(kGroup);
  command
      ->add_option(
          "--dtype", placement->dtype,
          "Type of the weights in matrix products: f32, int8, bf16 (GPU, and CPUs that compute "
          "with it), f16 (GPU) or fp8 (e4m3, GPU). auto: the type in which quintet convert wrote "
          "the directory, where the device computes with it; otherwise f32 on a CPU, bf16 on a "
          "GPU. Activations beside int8 and fp8 weights are bf16 on a GPU.")
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
  return absl::StrCat("the directory holds ", config.converted_dtype,
                      " weights, which this CPU cannot compute with: they are converted to ",
                      WeightTypeName(type), "; --dtype sets another type");
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Placement& placement) {
  std::unique_ptr<Device> device;
  if (const int ordinal = DeviceOrdinal(placement); ordinal >= 0) {
    auto opened = Device::Open(ordinal);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  if (const auto given = TypeByName(placement.dtype); given && !RunsOn(placement, *given)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype ", placement.dtype, ": products of this type do not run on this CPU"));
  }
  return device;
}

}  // namespace quintet
