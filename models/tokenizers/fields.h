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

// QT_ASSIGN_OR_RETURN assigns the value of a StatusOr to a declaration or variable, or returns its
// status. QT_RETURN_IF_ERROR returns a status that is not OK.
#define QT_ASSIGN_JOIN2(a, b) a##b
#define QT_ASSIGN_JOIN(a, b) QT_ASSIGN_JOIN2(a, b)
#define QT_ASSIGN_OR_RETURN(target, expression) \
  QT_ASSIGN_OR_RETURN_NAMED(QT_ASSIGN_JOIN(qt_result_, __LINE__), target, expression)
#define QT_ASSIGN_OR_RETURN_NAMED(result, target, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return result.status();                   \
  target = *std::move(result)
#define QT_RETURN_IF_ERROR(expression)                                            \
  do {                                                                            \
    if (absl::Status qt_status = (expression); !qt_status.ok()) return qt_status; \
  } while (0)
