// Reserves vector capacity ahead of time; push_back in a step then cannot throw.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quintet {

// Ensures capacity for `size` elements. The capacity grows geometrically, which vector::reserve
// does not guarantee.
template <typename T>
void EnsureCapacity(size_t size, std::vector<T>* vector) {
  if (size > vector->capacity()) vector->reserve(std::max(size, 2 * vector->capacity()));
}

}  // namespace quintet
