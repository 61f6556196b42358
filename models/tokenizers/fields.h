// Checked access to fields of JSON objects. Errors say where, expected and got.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

absl::Status ExpectedField(const std::string& where, const std::string& field,
                           const std::string& expected, const nlohmann::json& got);
// Returns a JSON value for use in messages, at most 80 bytes; of lists and objects only type and
// size.
std::string JsonForMessage(const nlohmann::json& value);

// Returns a field of an object; null if it is missing or has the value null.
const nlohmann::json* FindField(const nlohmann::json& object, const char* field);
// Returns whether a JSON value is this string. nlohmann's operator==, which is noexcept, allocates
// memory; this function does not.
bool EqualsString(const nlohmann::json& value, std::string_view text);

// Return the value of a field of this type; INVALID_ARGUMENT for another type. If the field is
// missing or null, they return `fallback`; functions without that parameter return
// INVALID_ARGUMENT.
absl::StatusOr<bool> BoolField(const nlohmann::json& object, const char* field, bool fallback,
                               const std::string& where);
absl::StatusOr<int64_t> IntField(const nlohmann::json& object, const char* field,
                                 const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& fallback, const std::string& where);

}  // namespace quintet
