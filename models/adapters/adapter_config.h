// The configuration of a LoRA adapter: adapter_config.json as written by PEFT (peft 0.6 to 0.19).
// Files are untrusted. Every field that changes what the adapter computes is either supported or
// refused with an error that names the field. A field that this reader does not know is also
// refused, unless its value is null, false or empty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/module_key.h"

namespace quintet {

// Modules named by a list of suffixes or by one regular expression (target_modules,
// exclude_modules).
struct ModuleSet {
  std::vector<std::string> suffixes;
  std::optional<ModuleRegex> regex;
  bool Contains(const std::string& module) const;
};

struct AdapterConfig {
  int64_t rank = 8;              // r
  double alpha = 8.0;            // lora_alpha
  bool rank_stabilized = false;  // use_rslora: scale alpha / sqrt(rank) instead of alpha / rank
  // Which modules have LoRA factors.
  ModuleSet targets, excluded;
  bool all_linear = false;               // target_modules: "all-linear"
  std::vector<int64_t> layers;           // layers_to_transform; empty: all
  std::vector<std::string> layer_lists;  // layers_pattern: names of the lists of layers
  // Ranks and alphas of single modules.
  std::vector<std::pair<ModuleKey, int64_t>> ranks;
  std::vector<std::pair<ModuleKey, double>> alphas;
  std::vector<std::string> saved;  // modules_to_save: trained as a whole
  std::string task;                // task_type, or empty
  std::string base_model;          // base_model_name_or_path, or empty; only for messages
  std::string peft_version;        // or empty

  // Whether target_modules, exclude_modules, layers_to_transform and layers_pattern name a module.
  // With all_linear the caller decides which modules are linear.
  bool Targets(const std::string& module) const;
  // Rank and scale of a module. INVALID_ARGUMENT if several keys of rank_pattern, or several of
  // alpha_pattern, match the module and have different values.
  absl::StatusOr<int64_t> RankOf(const std::string& module) const;
  absl::StatusOr<float> ScaleOf(const std::string& module) const;
};

constexpr int64_t kMaxAdapterRank = 1024;

// ReadAdapterConfig reads directory/adapter_config.json. ParseAdapterConfig parses the text of such
// a file; `where` names the file in messages. The message of INVALID_ARGUMENT gives the file, the
// field, the expected value and the actual one, that of UNIMPLEMENTED what Quintet does not compute
// (DoRA, other kinds of adapters, trained biases or embeddings, ...) and what to do instead.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& directory,
                                                bool follow_symlinks = false);
absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json, const std::string& where);

}  // namespace quintet
