// The files of a converted directory except its weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Copies the tokenizer files, generation_config.json, sentence-transformers modules and licence
// texts of `source`.
// INVALID_ARGUMENT for files larger than 256 MiB and, unless follow_symlinks, for symbolic links
// that ResolveLink refuses.
absl::Status CopyCompanions(const std::string& source, const std::string& target,
                            bool follow_symlinks);

// Writes a file that must not exist. RESOURCE_EXHAUSTED if the disk is full.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::Status WriteJson(const std::string& path, const nlohmann::json& value);

}  // namespace quintet
