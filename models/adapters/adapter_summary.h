// Summarizes the files of an adapter without its base model, for `quintet inspect`. Reads the
// configuration and the header of the weights, not the values.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_config.h"

namespace quintet {

struct AdapterSummary {
  bool peft = true;      // else kohya's format
  AdapterConfig config;  // PEFT only
  int64_t least_rank = 0, most_rank = 0;
  std::map<std::string, int64_t> modules;        // last part of a module's name -> their number
  std::map<std::string, int64_t> stored_values;  // "BF16" -> number of values
  int64_t parameters = 0;
  int64_t skipped = 0;  // kohya: tensors of other models than text encoders
};

// Whether a path is an adapter and not a model: a directory with adapter_config.json and without
// config.json, or a *.safetensors file.
bool IsAdapterPath(const std::string& path);

// Returns those errors of ReadAdapter that can be found without a model.
absl::StatusOr<AdapterSummary> InspectAdapter(const std::string& path, bool follow_symlinks);

}  // namespace quintet
