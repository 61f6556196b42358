#include "models/adapters/adapter_summary.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/adapters/adapter_files.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

// Adds a module to the counts and ranks of *summary, given the tensor of its LoRA factor A, whose
// first dimension is the rank.
void CountModule(absl::string_view name, const StoredTensor& tensor, char separator,
                 AdapterSummary* summary) {
  size_t at = name.rfind(separator);
  // Kohya joins the parts of names by '_', but '_' is also a part of names such as wi_0.
  if (at != absl::string_view::npos &&
      absl::ascii_isdigit(static_cast<unsigned char>(name.back()))) {
    at = name.rfind(separator, at - 1);
  }
  if (at != absl::string_view::npos) name.remove_prefix(at + 1);
  ++summary->modules[std::string(name)];
  const int64_t rank = tensor.shape.empty() ? 0 : tensor.shape[0];
  summary->least_rank = summary->most_rank == 0 ? rank : std::min(summary->least_rank, rank);
  summary->most_rank = std::max(summary->most_rank, rank);
}

}  // namespace

bool IsAdapterPath(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    // A file model*.safetensors is more likely a model, given by mistake, than an adapter.
    const std::string name = fs::path(path).filename().string();
    return absl::EndsWith(name, ".safetensors") && !absl::StartsWith(name, "model");
  }
  return HasEntry(path, "adapter_config.json") && !HasEntry(path, "config.json");
}

absl::StatusOr<AdapterSummary> InspectAdapter(const std::string& path, bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(AdapterFiles files, OpenAdapterFiles(path, follow_symlinks));
  AdapterSummary summary;
  summary.peft = files.config.has_value();
  if (summary.peft) summary.config = *std::move(files.config);
  for (const StoredTensor& tensor : files.weights.tensors()) {
    absl::string_view name = tensor.name;
    if (absl::StartsWith(name, "lora_unet_")) {
      ++summary.skipped;
      continue;
    }
    const int64_t values = tensor.bytes / StoredTypeBytes(tensor.type);
    summary.parameters += values;
    summary.stored_values[StoredTypeName(tensor.type)] += values;
    if (absl::ConsumeSuffix(&name, ".lora_A.weight")) CountModule(name, tensor, '.', &summary);
    if (absl::ConsumeSuffix(&name, ".lora_down.weight")) CountModule(name, tensor, '_', &summary);
  }
  return summary;
}

}  // namespace quintet
