// Divides the rows of a GEMM into ranges of consecutive rows that have the same LoRA adapter. For
// such a range the GEMM uses a copy of the weights to which the adapter's terms are added
// (LoraInput::adapter).
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

// Returns the adapter that all rows have; -1 if they differ, or there are none.
int32_t CommonAdapter(std::span<const int32_t> adapters);

// Divides rows, whose adapters are `adapters` (-1: none), into ranges that cover them in ascending
// order. A range that is not kMixed has at least `min_rows` rows. Two kMixed ranges are never
// adjacent. Clears *ranges if a single kMixed range would contain all rows.
void DivideByAdapter(std::span<const int32_t> adapters, int64_t min_rows,
                     std::vector<AdapterRange>* ranges);

}  // namespace quintet
