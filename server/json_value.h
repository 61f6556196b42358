// JSON values of responses and of the access log. They replace nlohmann::json there, because its
// destructor allocates memory and ends the process if that fails. Not thread-safe; functions throw
// std::bad_alloc, and destructors allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace quintet {

class JsonValue {
 public:
  // An element of a braced list. JsonValue moves the value out of the element.
  class Item;

  // The special members and the conversions are not inline: braced lists call many of them.
  JsonValue() noexcept;  // null
  // Only movable: std::variant of GCC 12 does not tolerate a copy that fails.
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(JsonValue&& other) noexcept;
  ~JsonValue();
  JsonValue(std::nullptr_t) noexcept;
  JsonValue(bool value);
  JsonValue(int number);
  JsonValue(int64_t number);
  JsonValue(uint32_t number);
  JsonValue(uint64_t number);
  JsonValue(double number);
  JsonValue(const char* text);
  JsonValue(std::string text);
  template <typename T>
  JsonValue(const std::vector<T>& elements) : JsonValue(Array()) {
    for (const T& element : elements) push_back(element);
  }
  // An object if every item is a list of a string and a value, otherwise an array.
  JsonValue(std::initializer_list<Item> items);

  static JsonValue Array();
  static JsonValue Array(std::initializer_list<Item> items);
  static JsonValue Object();

  // Returns the member `name`; appends it, with the value null, if there is none. This JsonValue
  // must be an object or null; null becomes an empty object first.
  JsonValue& operator[](absl::string_view name);
  // Appends an element. The value is an array.
  void push_back(JsonValue element);

  // The number of elements or members.
  size_t size() const;
  bool empty() const { return size() == 0; }

  // Appends the value as JSON text without line breaks. Bytes that are not UTF-8 become U+FFFD, and
  // numbers that are not finite null.
  void AppendTo(std::string* text) const;

 private:
  using Elements = std::vector<JsonValue>;
  // In the order in which they were added.
  using Members = std::vector<std::pair<std::string, JsonValue>>;

  // Moves the items to a list.
  static Elements Moved(std::initializer_list<Item> items);

  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Elements, Members>
      value_;
};

class JsonValue::Item {
 public:
  template <typename T, std::enable_if_t<std::is_constructible_v<JsonValue, T&&>, int> = 0>
  Item(T&& value) : value_(std::forward<T>(value)) {}
  Item(std::initializer_list<Item> items) : value_(items) {}

 private:
  friend class JsonValue;
  mutable JsonValue value_;  // mutable, because the elements of an initializer_list are const
};

// Appends `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(absl::string_view text, std::string* to);

// Returns the text of `value` (AppendTo).
std::string JsonText(const JsonValue& value);

}  // namespace quintet
