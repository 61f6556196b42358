// The inner loop of byte-pair encoding: merges adjacent symbols in rank order until no merge
// applies.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quintet {

// Maps a pair of symbols to its rank and to the symbol that it merges into.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // lowest first; equal ranks from left to right
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

// Special values in a list of symbols. kUnmerged: a symbol that never merges. kJoined and all lower
// values: this position was merged into a symbol to its left.
inline constexpr int32_t kUnmerged = -1, kJoined = -2;

// Merges in place. `symbols` holds ids or kUnmerged. Each step merges the leftmost pair of the
// lowest rank. A merged symbol stays at the position of its first part; the positions of its other
// parts become kJoined or lower. O(n log n) in the worst case, O(n) if few distinct ranks occur, as
// in long repetitions. Uses about five bytes per symbol in addition to the list. At most 2^31 - 2
// symbols.
void MergeSymbols(const MergeTable& table, std::vector<int32_t>* symbols);

}  // namespace quintet
