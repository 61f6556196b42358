// Ranges of consecutive rows with one LoRA adapter, for which a GEMM of many rows uses weights that
// contain the adapter's terms (LoraInput::adapter).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quintet {

struct AdapterRange {
  static constexpr int32_t kNone = -1, kMixed = -2;

  int64_t begin = 0, end = 0;
  int32_t adapter = kNone;  // of all rows; kMixed: rows may differ

  bool operator==(const AdapterRange&) const = default;
};

// Divides rows, whose adapters are `adapters` (-1: none), into ranges that cover them in ascending
// order. A range that is not kMixed has at least `min_rows` rows, and no kMixed range follows
// another. Clears *ranges if all rows would be in a kMixed range.
void DivideByAdapter(std::span<const int32_t> adapters, int64_t min_rows,
                     std::vector<AdapterRange>* ranges);

}  // namespace quintet
