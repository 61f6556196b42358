#include "server/json_value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "nlohmann/json.hpp"

namespace quintet {
namespace {

// Takes only scalars: the destructor of nlohmann::json allocates memory for arrays and objects.
std::string Dump(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

JsonValue::JsonValue() noexcept = default;
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue&& other) noexcept = default;
JsonValue::~JsonValue() = default;
JsonValue::JsonValue(std::nullptr_t) noexcept {}
JsonValue::JsonValue(bool value) : value_(value) {}
JsonValue::JsonValue(int number) : value_(int64_t{number}) {}
JsonValue::JsonValue(int64_t number) : value_(number) {}
JsonValue::JsonValue(uint32_t number) : value_(uint64_t{number}) {}
JsonValue::JsonValue(uint64_t number) : value_(number) {}
JsonValue::JsonValue(double number) : value_(number) {}
JsonValue::JsonValue(const char* text) : value_(std::string(text)) {}
JsonValue::JsonValue(std::string text) : value_(std::move(text)) {}

JsonValue::Elements JsonValue::Moved(std::initializer_list<Item> items) {
  Elements elements;
  elements.reserve(items.size());
  for (const Item& item : items) elements.push_back(std::move(item.value_));
  return elements;
}

JsonValue::JsonValue(std::initializer_list<Item> items) {
  const auto is_member = [](const Item& item) {
    const auto* const pair = std::get_if<Elements>(&item.value_.value_);
    return pair != nullptr && pair->size() == 2 &&
           std::holds_alternative<std::string>(pair->front().value_);
  };
  if (!std::all_of(items.begin(), items.end(), is_member)) {
    value_ = Moved(items);
    return;
  }
  Members members;
  members.reserve(items.size());
  for (const Item& item : items) {
    Elements& pair = std::get<Elements>(item.value_.value_);
    members.emplace_back(std::get<std::string>(std::move(pair[0].value_)), std::move(pair[1]));
  }
  value_ = std::move(members);
}

JsonValue JsonValue::Array() { return Array({}); }

JsonValue JsonValue::Array(std::initializer_list<Item> items) {
  JsonValue array;
  array.value_ = Moved(items);
  return array;
}

JsonValue JsonValue::Object() {
  JsonValue object;
  object.value_ = Members();
  return object;
}

JsonValue& JsonValue::operator[](absl::string_view name) {
  if (std::holds_alternative<std::nullptr_t>(value_)) value_ = Members();
  auto* const members = std::get_if<Members>(&value_);
  QT_CHECK(members != nullptr);
  const auto found = std::find_if(members->begin(), members->end(),
                                  [&](const auto& member) { return member.first == name; });
  if (found != members->end()) return found->second;
  return members->emplace_back(std::string(name), JsonValue()).second;
}

void JsonValue::push_back(JsonValue element) {
  auto* const elements = std::get_if<Elements>(&value_);
  QT_CHECK(elements != nullptr);
  elements->push_back(std::move(element));
}

size_t JsonValue::size() const {
  if (const auto* const elements = std::get_if<Elements>(&value_)) return elements->size();
  const auto* const members = std::get_if<Members>(&value_);
  return members == nullptr ? 0 : members->size();
}

void JsonValue::AppendTo(std::string* text) const {
  if (const auto* const elements = std::get_if<Elements>(&value_)) {
    char before = '[';
    for (const JsonValue& element : *elements) {
      text->push_back(std::exchange(before, ','));
      element.AppendTo(text);
    }
    text->append(elements->empty() ? "[]" : "]");
  } else if (const auto* const members = std::get_if<Members>(&value_)) {
    char before = '{';
    for (const auto& [name, member] : *members) {
      text->push_back(std::exchange(before, ','));
      AppendJsonString(name, text);
      text->push_back(':');
      member.AppendTo(text);
    }
    text->append(members->empty() ? "{}" : "}");
  } else if (const auto* const string = std::get_if<std::string>(&value_)) {
    AppendJsonString(*string, text);
  } else if (const auto* const number = std::get_if<double>(&value_)) {
    text->append(Dump(*number));
  } else if (const auto* const integer = std::get_if<int64_t>(&value_)) {
    absl::StrAppend(text, *integer);
  } else if (const auto* const whole = std::get_if<uint64_t>(&value_)) {
    absl::StrAppend(text, *whole);
  } else if (const auto* const boolean = std::get_if<bool>(&value_)) {
    text->append(*boolean ? "true" : "false");
  } else {
    text->append("null");
  }
}

void AppendJsonString(absl::string_view text, std::string* to) {
  const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), plain)) {
    absl::StrAppend(to, "\"", text, "\"");
  } else {
    to->append(Dump(std::string(text)));
  }
}

std::string JsonText(const JsonValue& value) {
  std::string text;
  value.AppendTo(&text);
  return text;
}

}  // namespace quintet
