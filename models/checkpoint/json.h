// Parses JSON from untrusted files, and reads such files into memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Parses one JSON text. INVALID_ARGUMENT, with a message that starts with `where` (a file name),
// for bad syntax or UTF-8, bytes after the value, duplicate keys in an object, nesting deeper than
// max_depth, and numbers outside the range of double. A leading byte-order mark is skipped.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& where,
                                         int max_depth = 32);

// Returns the contents of a regular file. Returns NOT_FOUND if it does not exist; INVALID_ARGUMENT
// if it is not a regular file or is larger than max_bytes, which is checked before memory is
// allocated. Messages contain only the last component of the path.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Calls ReadFile, then ParseJson with the file's name as `where`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes,
                                            int max_depth = 32);

}  // namespace quintet
