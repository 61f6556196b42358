#include "models/config/config_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

// Describes a value for messages. Lists and objects are not printed, because they may be huge.
std::string Got(const nlohmann::json& value) {
  if (value.is_number()) return absl::StrCat("got ", value.dump());
  if (value.is_string())
    return absl::StrCat("got \"", Printable(value.get_ref<const std::string&>()), "\"");
  return absl::StrCat("got ", value.is_boolean() ? "a boolean"
                              : value.is_array() ? "a list"
                                                 : "an object");
}

std::optional<int64_t> AsInt(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

ConfigFields::ConfigFields(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

void ConfigFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void ConfigFields::Invalid(const std::string& field, const std::string& what) {
  Fail(absl::InvalidArgumentError(absl::StrCat(where_, ": ", field, ": ", what)));
}

const nlohmann::json* ConfigFields::Find(const std::string& field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> ConfigFields::Int(const std::string& field, int64_t min_value,
                                         int64_t max_value) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  const auto v = AsInt(*value);
  if (!v || *v < min_value || *v > max_value) {
    Invalid(field, absl::StrCat("expected an integer from ", min_value, " to ", max_value, ", ",
                                Got(*value)));
    return std::nullopt;
  }
  return v;
}

std::optional<int64_t> ConfigFields::Int(std::initializer_list<const char*> names,
                                         int64_t min_value, int64_t max_value) {
  std::optional<int64_t> result;
  const char* first = nullptr;
  for (const char* name : names) {
    const auto v = Int(name, min_value, max_value);
    if (!v) continue;
    if (result && *v != *result) {
      Invalid(name, absl::StrCat("is ", *v, ", but its alias ", first, " is ", *result));
    }
    if (!result) first = name;
    result = v;
  }
  return result;
}

std::optional<double> ConfigFields::Number(const std::string& field, double min_value,
                                           double max_value) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  const double v = value->is_number() ? value->get<double>() : std::nan("");
  if (!(v >= min_value && v <= max_value)) {
    Invalid(field, absl::StrCat("expected a number from ", min_value, " to ", max_value, ", ",
                                Got(*value)));
    return std::nullopt;
  }
  return v;
}

std::optional<bool> ConfigFields::Bool(const std::string& field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Invalid(field, absl::StrCat("expected true or false, ", Got(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> ConfigFields::String(const std::string& field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Invalid(field, absl::StrCat("expected a string, ", Got(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::vector<int32_t> ConfigFields::TokenIds(const std::string& field, int64_t vocab,
                                            size_t max_ids) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    const auto id = Int(field, 0, vocab - 1);
    return id ? std::vector<int32_t>{static_cast<int32_t>(*id)} : std::vector<int32_t>();
  }
  if (value->size() > max_ids) {
    Invalid(field, absl::StrCat("expected at most ", max_ids, " ids, got ", value->size()));
    return {};
  }
  std::vector<int32_t> ids;
  for (const nlohmann::json& element : *value) {
    const auto id = AsInt(element);
    if (!id || *id < 0 || *id >= vocab) {
      Invalid(field, absl::StrCat("expected ids from 0 to ", vocab - 1, ", ", Got(element)));
      return {};
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace quintet
