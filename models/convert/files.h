// The files of a converted directory except its weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

struct CompanionOptions {
  std::string source;     // the model: a directory or a file
  std::string tokenizer;  // of FindTokenizer: the model itself, a directory or a file
  std::string target;
  bool follow_symlinks = false;
};
// Copies generation_config.json, sentence-transformers modules and licence texts of the source, and
// the files of the tokenizer. A tokenizer inside a weight file is written as spiece.model.
// Returns INVALID_ARGUMENT for files larger than 256 MiB and, unless follow_symlinks, for symbolic
// links that ResolveLink refuses.
absl::Status CopyCompanions(const CompanionOptions& options);

// Writes a file that must not exist. Returns RESOURCE_EXHAUSTED if the disk is full.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::Status WriteJson(const std::string& path, const nlohmann::json& value);

}  // namespace quintet
