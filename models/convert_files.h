// Files of a converted directory beside its weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

// FAILED_PRECONDITION when `path` is a symbolic link.
absl::Status RefuseSymlink(const std::string& path);

// Copies tokenizer files, generation_config.json and licence texts that `source` holds.
// FAILED_PRECONDITION for symbolic links unless follow_symlinks, INVALID_ARGUMENT for files of more
// than 256 MiB.
absl::Status CopyCompanions(const std::string& source, const std::string& target,
                            bool follow_symlinks);

// Writes a file that must not exist. RESOURCE_EXHAUSTED when the disk is full.
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::Status WriteJson(const std::string& path, const nlohmann::json& value);

}  // namespace quintet
