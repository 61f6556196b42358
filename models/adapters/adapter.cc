#include "models/adapters/adapter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/adapters/adapter_files.h"
#include "models/adapters/adapter_tensors.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

absl::StatusOr<std::vector<float>> ReadValues(const SafetensorsReader& file,
                                              const StoredTensor& tensor) {
  const int64_t count = tensor.bytes / StoredTypeBytes(tensor.type);
  std::vector<char> raw(static_cast<size_t>(tensor.bytes));
  QT_RETURN_IF_ERROR(file.Read(tensor, 0, tensor.bytes, raw.data()));
  std::vector<float> values(static_cast<size_t>(count));
  ConvertToF32(raw.data(), *ToDType(tensor.type), count, values.data());
  // `poison`, the sum of value * 0, is 0 if all values are finite; NaN or infinity make it NaN.
  float poison = 0.0f;
  for (const float value : values) poison += value * 0.0f;
  if (poison == 0.0f) return values;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Printable(tensor.name), " holds a NaN or an infinity"));
}

// With `describe`, reads no values.
absl::StatusOr<Adapter> ReadTensors(const SafetensorsReader& file, const AdapterTensors& found,
                                    bool describe) {
  Adapter adapter;
  adapter.skipped = found.skipped;
  for (const FactorTensors& tensors : found.factors) {
    LoraFactors factors;
    factors.module = *tensors.module;
    factors.rank = tensors.rank;
    factors.scale = tensors.scale;
    if (!describe) {
      QT_ASSIGN_OR_RETURN(factors.a, ReadValues(file, *tensors.a));
      QT_ASSIGN_OR_RETURN(factors.b, ReadValues(file, *tensors.b));
      if (tensors.alpha != nullptr) {
        QT_ASSIGN_OR_RETURN(const std::vector<float> alpha, ReadValues(file, *tensors.alpha));
        factors.scale = alpha[0] / static_cast<float>(tensors.rank);
      }
    }
    adapter.factors.push_back(std::move(factors));
  }
  for (const auto& [head, tensor] : found.saved) {
    std::vector<float> values;
    if (!describe) {
      QT_ASSIGN_OR_RETURN(values, ReadValues(file, *tensor));
    }
    adapter.saved.push_back({*head, std::move(values)});
  }
  return adapter;
}

absl::StatusOr<Adapter> OpenAdapter(const std::string& path, const ModelConfig& config,
                                    bool follow_symlinks, bool describe) {
  return CatchOutOfMemory([&]() -> absl::StatusOr<Adapter> {
    QT_ASSIGN_OR_RETURN(const AdapterFiles files, OpenAdapterFiles(path, follow_symlinks));
    const ModuleTable modules = ListModules(config);
    QT_ASSIGN_OR_RETURN(const AdapterTensors found,
                        files.config.has_value()
                            ? MatchPeftTensors(files.weights, *files.config, modules)
                            : MatchKohyaTensors(files.weights, modules));
    return ReadTensors(files.weights, found, describe);
  });
}

}  // namespace

int64_t Adapter::parameters() const {
  size_t count = 0;
  for (const LoraFactors& f : factors) count += f.a.size() + f.b.size();
  for (const SavedTensor& s : saved) count += s.values.size();
  return static_cast<int64_t>(count);
}

int64_t Adapter::max_rank() const {
  int64_t rank = 0;
  for (const LoraFactors& f : factors) rank = std::max(rank, f.rank);
  return rank;
}

bool Adapter::Changes(const std::string& parameter) const {
  return std::any_of(factors.begin(), factors.end(),
                     [&](const LoraFactors& f) { return f.module.parameter == parameter; }) ||
         std::any_of(saved.begin(), saved.end(),
                     [&](const SavedTensor& s) { return s.tensor.parameter == parameter; });
}

absl::StatusOr<Adapter> ReadAdapter(const std::string& path, const ModelConfig& config,
                                    bool follow_symlinks) {
  return OpenAdapter(path, config, follow_symlinks, /*describe=*/false);
}

absl::StatusOr<Adapter> DescribeAdapter(const std::string& path, const ModelConfig& config,
                                        bool follow_symlinks) {
  return OpenAdapter(path, config, follow_symlinks, /*describe=*/true);
}

}  // namespace quintet
