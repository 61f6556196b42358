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
// The value for messages, truncated to 80 bytes; lists and objects as their type and size.
std::string JsonForMessage(const nlohmann::json& value);

// nullptr when the field is missing or null.
const nlohmann::json* FindField(const nlohmann::json& object, const char* field);
// Unlike nlohmann's noexcept operator==, this allocates nothing.
bool EqualsString(const nlohmann::json& value, std::string_view text);

// A missing or null field gives the fallback. Without a fallback parameter the field is required.
absl::StatusOr<bool> BoolField(const nlohmann::json& object, const char* field, bool fallback,
                               const std::string& where);
absl::StatusOr<int64_t> IntField(const nlohmann::json& object, const char* field,
                                 const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& fallback, const std::string& where);

}  // namespace quintet
