#include "models/tokenizers/fields.h"

#include "absl/strings/str_cat.h"

namespace quintet {

using Json = nlohmann::json;

std::string JsonForMessage(const Json& value) {
  if (value.is_object() || value.is_array())
    return absl::StrCat(value.type_name(), " of ", value.size());
  return value.dump().substr(0, 80);
}

absl::Status ExpectedField(const std::string& where, const std::string& field,
                           const std::string& expected, const Json& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", field, ": expected ", expected, ", got ", JsonForMessage(got)));
}

const Json* FindField(const Json& object, const char* field) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(field);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool EqualsString(const nlohmann::json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

absl::StatusOr<bool> BoolField(const Json& object, const char* field, bool fallback,
                               const std::string& where) {
  const Json* value = FindField(object, field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return ExpectedField(where, field, "true or false", *value);
  return value->get<bool>();
}

absl::StatusOr<int64_t> IntField(const Json& object, const char* field, const std::string& where) {
  const Json* value = FindField(object, field);
  if (value == nullptr) return ExpectedField(where, field, "an integer", nullptr);
  if (!value->is_number_integer() ||
      (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
    return ExpectedField(where, field, "an integer", *value);
  }
  return value->get<int64_t>();
}

absl::StatusOr<std::string> StringField(const Json& object, const char* field,
                                        const std::string& where) {
  const Json* value = FindField(object, field);
  if (value == nullptr) return ExpectedField(where, field, "a string", nullptr);
  if (!value->is_string()) return ExpectedField(where, field, "a string", *value);
  return value->get<std::string>();
}

absl::StatusOr<std::string> StringField(const Json& object, const char* field,
                                        const std::string& fallback, const std::string& where) {
  if (FindField(object, field) == nullptr) return fallback;
  return StringField(object, field, where);
}

}  // namespace quintet
