#include "engine/placement.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "models/weights/weights.h"

namespace quintet {
namespace {

constexpr char kGpu[] = "cuda";

// Returns the weight type with this name; nullopt if `name` is "auto" (a value of --dtype) or empty
// (converted_dtype of a model directory that is not converted).
std::optional<WeightType> TypeByName(const std::string& name) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBF16, WeightType::kF16, WeightType::kI8, WeightType::kF8,
        WeightType::kI8W8A8, WeightType::kF8W8A8}) {
    if (name == WeightTypeName(type)) return type;
  }
  return std::nullopt;
}

// Returns the largest number of inputs of the matrices that can have the weight type `type`, which
// quantises inputs.
// With fp8 the last matrix of a feed-forward block keeps bf16 (WeightSlot::wide).
int64_t MostQuantizedInputs(const ModelConfig& config, WeightType type) {
  const int64_t most = std::max(config.d_model, config.inner());
  return type == WeightType::kI8W8A8 ? std::max(most, config.d_ff) : most;
}

// Whether the device supports weights of this type. Always true for a GPU: types that only some
// GPUs support are checked when the model is loaded.
bool RunsOn(const Placement& placement, WeightType type) {
  return DeviceOrdinal(placement) >= 0 || WeightTypeSupported(type, nullptr);
}

}  // namespace

std::string CanonicalDevice(const std::string& device) {
  absl::string_view suffix = device;
  const bool is_alias = absl::ConsumePrefix(&suffix, "gpu") && (suffix.empty() || suffix[0] == ':');
  return is_alias ? absl::StrCat(kGpu, suffix) : device;
}

absl::Status CheckDeviceName(const std::string& device) {
  absl::string_view number = device;
  int ordinal = 0;
  if (device == kAutoPlacement || device == "cpu" || device == kGpu) return absl::OkStatus();
  if (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0 &&
      ordinal < 1024) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected auto, cpu, cuda or cuda:N, got ", device));
}

absl::Status CheckDtypeName(const std::string& dtype) {
  if (dtype == kAutoPlacement || TypeByName(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected auto or one of ", absl::StrJoin(kDtypes, ", "), ", got ", dtype));
}

void ResolveAutoDevice(Placement* placement) {
  if (placement->device != kAutoPlacement) return;
  const absl::StatusOr<std::unique_ptr<Device>> gpu = Device::Open(0);
  placement->device = gpu.ok() ? kGpu : "cpu";
  placement->choice = gpu.ok() ? (*gpu)->name() : std::string(gpu.status().message());
}

std::string DescribeAutoDevice(const Placement& placement, const ModelConfig& config) {
  if (placement.choice.empty()) return "";
  return absl::StrCat("device auto: ", placement.device, " (", placement.choice, "), dtype ",
                      WeightTypeName(WeightTypeOf(placement, config)));
}

int DeviceOrdinal(const Placement& placement) {
  QT_CHECK(placement.device != kAutoPlacement);
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

std::string DtypeWarning(const Placement& placement, const ModelConfig& config) {
  const WeightType type = WeightTypeOf(placement, config);
  if (QuantizesInputs(type) && MostQuantizedInputs(config, type) < kMinQuantizedInputs) {
    return absl::StrCat("dtype ", WeightTypeName(type), ": no matrix of this model has ",
                        kMinQuantizedInputs, " inputs or more, so it runs as with ",
                        type == WeightType::kF8W8A8 ? "fp8" : "int8");
  }
  if (placement.dtype != kAutoPlacement || !config.converted() ||
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
    absl::StatusOr<std::unique_ptr<Device>> opened = Device::Open(ordinal);
    if (!opened.ok()) {
      return absl::Status(opened.status().code(),
                          absl::StrCat("--device ", placement.device, ": ",
                                       opened.status().message(), "; use --device cpu"));
    }
    device = *std::move(opened);
  }
  if (const auto given = TypeByName(placement.dtype); given && !RunsOn(placement, *given)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype: ", placement.dtype, " is not supported on this CPU; use f32, int8 or auto"));
  }
  return device;
}

}  // namespace quintet
