// Checked access to fields of JSON objects. Error messages say which field, what was expected and
// what was found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace quintet {

absl::Status ExpectedField(const std::string& where, const std::string& field,
                           const std::string& expected, const nlohmann::json& got);
// Returns a JSON value as text for messages, at most 80 bytes. For a list or an object the text is
// only its type and size.
std::string JsonForMessage(const nlohmann::json& value);

// Returns a field of an object; null if it is missing or has the value null.
const nlohmann::json* FindField(const nlohmann::json& object, const char* field);
// Returns whether a JSON value is a string equal to `text`. nlohmann's operator==, which is
// noexcept, allocates memory; this function does not.
bool EqualsString(const nlohmann::json& value, std::string_view text);

// BoolField, IntField and StringField return the value of a field. They return INVALID_ARGUMENT if
// the value has another type. If the field is missing or null, the functions with a parameter
// `fallback` return `fallback`, and the others return INVALID_ARGUMENT.
absl::StatusOr<bool> BoolField(const nlohmann::json& object, const char* field, bool fallback,
                               const std::string& where);
absl::StatusOr<int64_t> IntField(const nlohmann::json& object, const char* field,
                                 const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& where);
absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* field,
                                        const std::string& fallback, const std::string& where);

}  // namespace quintet
