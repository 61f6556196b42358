// Room in vectors ahead of time, so that the push_back of a step cannot fail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quintet {

// Capacity for `size` elements. Grows geometrically, unlike vector::reserve.
template <typename T>
void EnsureCapacity(size_t size, std::vector<T>* vector) {
  if (size > vector->capacity()) vector->reserve(std::max(size, 2 * vector->capacity()));
}

}  // namespace quintet
