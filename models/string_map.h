// A hash map by string that is searched with a view. Abseil's hash maps corrupt the heap when an
// allocation fails while they grow; this one is as it was.
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
