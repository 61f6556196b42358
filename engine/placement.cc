#include "engine/placement.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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

// Returns the ordinals of `device`, which is cuda, cuda:N, cuda:N,M,... or cuda:all; nullopt if it
// is none of these.
std::optional<std::vector<int>> OrdinalsOf(absl::string_view device) {
  constexpr int kMostOrdinals = 1024;
  std::vector<int> ordinals;
  if (device == kGpu) return std::vector<int>{0};
  if (!absl::ConsumePrefix(&device, "cuda:")) return std::nullopt;
  if (device == "all") {
    for (int i = 0; i < std::max(Device::Count(), 1); ++i) ordinals.push_back(i);
    return ordinals;
  }
  for (const absl::string_view number : absl::StrSplit(device, ',')) {
    int ordinal = 0;
    if (!absl::SimpleAtoi(number, &ordinal) || ordinal < 0 || ordinal >= kMostOrdinals ||
        std::count(ordinals.begin(), ordinals.end(), ordinal) > 0) {
      return std::nullopt;
    }
    ordinals.push_back(ordinal);
  }
  return ordinals;
}

// Opens the first GPU, or chooses the CPU (null) if that fails. Replaces the device "auto".
std::unique_ptr<Device> OpenAutoDevice(Placement* placement) {
  absl::StatusOr<std::unique_ptr<Device>> gpu = Device::Open(0);
  placement->device = gpu.ok() ? kGpu : "cpu";
  placement->choice = gpu.ok() ? (*gpu)->name() : std::string(gpu.status().message());
  return gpu.ok() ? *std::move(gpu) : nullptr;
}

// Opens the GPUs of `placement`, whose device is not "auto"; returns one null pointer for the CPU.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenNamedDevices(const Placement& placement,
                                                                      bool several) {
  std::vector<std::unique_ptr<Device>> devices;
  const std::optional<std::vector<int>> ordinals = OrdinalsOf(placement.device);
  if (!ordinals) devices.push_back(nullptr);
  if (!several && ordinals && ordinals->size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device ", placement.device,
        ": only serve, generate, encode, score, classify and quintet.Model use several GPUs"));
  }
  for (const int ordinal : ordinals.value_or(std::vector<int>())) {
    absl::StatusOr<std::unique_ptr<Device>> opened = Device::Open(ordinal);
    if (!opened.ok()) {
      return absl::Status(opened.status().code(),
                          absl::StrCat("--device ", placement.device, ": ",
                                       opened.status().message(), "; use --device cpu"));
    }
    devices.push_back(*std::move(opened));
  }
  return devices;
}

}  // namespace

std::string CanonicalDevice(const std::string& device) {
  absl::string_view suffix = device;
  const bool is_alias = absl::ConsumePrefix(&suffix, "gpu") && (suffix.empty() || suffix[0] == ':');
  return is_alias ? absl::StrCat(kGpu, suffix) : device;
}

absl::Status CheckDeviceName(const std::string& device) {
  if (device == kAutoPlacement || device == "cpu" || OrdinalsOf(device)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected auto, cpu, cuda, cuda:N, cuda:N,M or cuda:all, got ", device));
}

absl::Status CheckDtypeName(const std::string& dtype) {
  if (dtype == kAutoPlacement || TypeByName(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected auto or one of ", absl::StrJoin(kDtypes, ", "), ", got ", dtype));
}

absl::Status CheckCacheDtypeName(const std::string& dtype) {
  if (dtype == kAutoPlacement || dtype == kFp8Cache) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected auto or ", absl::StrJoin(kCacheDtypes, ", "), ", got ", dtype));
}

void ResolveAutoDevice(Placement* placement) {
  if (placement->device == kAutoPlacement) OpenAutoDevice(placement);
}

std::string DescribeAutoDevice(const Placement& placement, const ModelConfig& config) {
  if (placement.choice.empty()) return "";
  return absl::StrCat("device auto: ", placement.device, " (", placement.choice, "), dtype ",
                      WeightTypeName(WeightTypeOf(placement, config)));
}

int DeviceOrdinal(const Placement& placement) {
  QT_CHECK(placement.device != kAutoPlacement);
  const std::optional<std::vector<int>> ordinals = OrdinalsOf(placement.device);
  return ordinals ? ordinals->front() : -1;
}

bool ShareDevice(const Placement& a, const Placement& b) {
  const std::optional<std::vector<int>> first = OrdinalsOf(a.device), second = OrdinalsOf(b.device);
  if (!first || !second) return !first && !second;
  return std::any_of(first->begin(), first->end(), [&](int ordinal) {
    return std::find(second->begin(), second->end(), ordinal) != second->end();
  });
}

WeightType WeightTypeOf(const Placement& placement, const ModelConfig& config) {
  if (const auto given = TypeByName(placement.dtype)) return *given;
  const auto held = TypeByName(config.converted_dtype);
  if (held && RunsOn(placement, *held)) return *held;
  return DeviceOrdinal(placement) < 0 ? WeightType::kF32 : WeightType::kBF16;
}

bool HasFp8Cache(const Placement& placement) { return placement.cache_dtype == kFp8Cache; }

std::string CacheTypeName(const Placement& placement, const ModelConfig& config) {
  if (HasFp8Cache(placement)) return kFp8Cache;
  const WeightType type = WeightTypeOf(placement, config);
  if (DeviceOrdinal(placement) < 0 || type == WeightType::kF32) return DTypeName(DType::kF32);
  return DTypeName(type == WeightType::kF16 ? DType::kF16 : DType::kBF16);
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

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(Placement* placement) {
  QT_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices,
                      OpenDevices(placement, /*several=*/false));
  return std::move(devices[0]);
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> OpenDevices(Placement* placement,
                                                                 bool several) {
  std::vector<std::unique_ptr<Device>> devices;
  if (placement->device == kAutoPlacement) {
    devices.push_back(OpenAutoDevice(placement));
  } else {
    QT_ASSIGN_OR_RETURN(devices, OpenNamedDevices(*placement, several));
  }
  if (const auto given = TypeByName(placement->dtype); given && !RunsOn(*placement, *given)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype: ", placement->dtype, " is not supported on this CPU; use f32, int8 or auto"));
  }
  if (HasFp8Cache(*placement) && devices[0] == nullptr) {
    return absl::InvalidArgumentError(
        "--cache-dtype: fp8 is not supported on a CPU, whose keys and values are f32; use auto, or "
        "--device cuda");
  }
  return devices;
}

}  // namespace quintet
