#include "tools/placement.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quintet {
namespace {

constexpr char kGpu[] = "cuda";

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
          "Weights of the matrix products: f32, int8, bf16 (GPU, and CPUs that compute with "
          "it), f16 (GPU) or fp8 (e4m3, GPU); auto: f32 on a CPU, bf16 on a GPU. Activations "
          "beside int8 and fp8 weights are bf16 on a GPU.")
      ->check(CLI::IsMember({"auto", "f32", "int8", "bf16", "f16", "fp8"}))
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

WeightType WeightTypeOf(const Placement& placement) {
  if (placement.dtype == "int8") return WeightType::kI8;
  if (placement.dtype == "fp8") return WeightType::kF8;
  if (placement.dtype == "f16") return WeightType::kF16;
  if (placement.dtype == "bf16") return WeightType::kBF16;
  if (placement.dtype == "f32" || DeviceOrdinal(placement) < 0) return WeightType::kF32;
  return WeightType::kBF16;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const Placement& placement) {
  std::unique_ptr<Device> device;
  if (const int ordinal = DeviceOrdinal(placement); ordinal >= 0) {
    auto opened = Device::Open(ordinal);
    if (!opened.ok()) return opened.status();
    device = *std::move(opened);
  }
  if (!WeightTypeSupported(WeightTypeOf(placement), device.get())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype ", placement.dtype, ": products of this type do not run on this CPU"));
  }
  return device;
}

}  // namespace quintet
