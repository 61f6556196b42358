// Overflow-checked arithmetic for sizes that come from files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace quintet {

// CheckedMultiply returns a * b, CheckedAdd returns a + b. Both return nullopt if the result
// overflows or an operand is negative.
inline std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Returns first * dims[0] * dims[1] * ...; nullopt if a partial product overflows, even if a later
// factor is zero.
inline std::optional<int64_t> CheckedProduct(int64_t first, std::span<const int64_t> dims) {
  std::optional<int64_t> product = first;
  for (int64_t d : dims) {
    product = CheckedMultiply(*product, d);
    if (!product) return std::nullopt;
  }
  return product;
}

}  // namespace quintet
