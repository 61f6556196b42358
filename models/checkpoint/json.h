// Parses JSON from untrusted files, and reads such files into memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Parses one JSON text. INVALID_ARGUMENT, with a message that starts with `where` (a file name),
// for bad syntax or UTF-8, bytes after the value, duplicate keys in an object, nesting deeper than
// max_depth, and numbers outside the range of double. A leading byte-order mark is skipped.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& where,
                                         int max_depth = 32);

// Empties *value without allocating memory. The destructor of nlohmann::json allocates memory for
// each element of an array or object that is not empty, and ends the process if that fails.
// Recursive: the nesting depth of *value must be bounded, as max_depth bounds it in ParseJson.
void ClearJson(nlohmann::json* value) noexcept;

// A parsed value whose destruction allocates no memory. Not thread-safe.
class JsonDocument {
 public:
  JsonDocument() = default;
  // Not explicit, so that a function can return the result of ParseJson.
  JsonDocument(nlohmann::json value) noexcept : value_(std::move(value)) {}
  JsonDocument(JsonDocument&& other) noexcept : value_(std::move(other.value_)) {}
  JsonDocument& operator=(JsonDocument&& other) noexcept {
    value_.swap(other.value_);
    other.Clear();
    return *this;
  }
  ~JsonDocument() { Clear(); }

  // Makes the value null.
  void Clear() noexcept;

  const nlohmann::json& operator*() const { return value_; }
  const nlohmann::json* operator->() const { return &value_; }

 private:
  nlohmann::json value_;
};

// Returns the contents of a regular file. Returns NOT_FOUND if it does not exist; INVALID_ARGUMENT
// if it is not a regular file or is larger than max_bytes, which is checked before memory is
// allocated. Messages contain only the last component of the path.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// Calls ReadFile, then ParseJson with the file's name as `where`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes,
                                            int max_depth = 32);

}  // namespace quintet
