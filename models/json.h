// JSON of files that nobody vouches for, and the reading of such files into memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Parses one JSON text. INVALID_ARGUMENT, starting with `where` (a file name), for: bad syntax or
// UTF-8, bytes after the value, a key twice in one object, nesting deeper than max_depth, numbers
// outside of double's range. A leading byte-order mark is skipped.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& where,
                                         int max_depth = 32);

// The whole of a regular file. NOT_FOUND when there is none, INVALID_ARGUMENT when it is not a
// regular file or larger than max_bytes (checked before any memory is taken). Errors name the file
// by its last path component.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// ReadFile, then ParseJson with the file's name as `where`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes,
                                            int max_depth = 32);

}  // namespace quintet
