// The inner loop of byte-pair encoding: merges neighbouring symbols by rank until no merge is left.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quintet {

// Which pairs of symbols merge, in which order, and into what.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // lower first; equal ranks from left to right
    int32_t result;
  };
  void Reserve(size_t count) { merges_.reserve(count); }
  void Set(int32_t left, int32_t right, Merge merge) { merges_[Key(left, right)] = merge; }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto it = merges_.find(Key(left, right));
    return it == merges_.end() ? nullptr : &it->second;
  }

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

// In a list of symbols: one that never merges, and the highest of the values that mean "part of the
// symbol before".
inline constexpr int32_t kUnmerged = -1, kJoined = -2;

// `symbols` are ids or kUnmerged. Always the pair of the lowest rank, the leftmost of those, merges
// next. Afterwards a symbol stands where its first part stood, and the places of its other parts
// hold kJoined or less. O(n log n) at worst
// and O(n) where few ranks occur, as in long repetitions; besides the list itself, about five bytes
// a symbol. Fewer than 2^31 symbols.
void MergeSymbols(const MergeTable& table, std::vector<int32_t>* symbols);

}  // namespace quintet
