// A hash map with string keys and lookup by string_view. Based on std::unordered_map, because that
// map stays unchanged if an allocation fails while the map grows. (Abseil's hash maps corrupt the
// heap in that case.)
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace quintet {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

}  // namespace quintet
