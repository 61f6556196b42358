// The inner loop of byte-pair encoding: merges adjacent symbols in rank order until no merge
// applies.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quintet {

// Maps a pair of adjacent symbols (token ids) to its rank and to the symbol that replaces the pair.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // merges run by ascending rank, then left to right
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

// Special values in the array of symbols. kUnmerged: a symbol that never merges. kJoined and all
// lower values: this position belongs to a symbol that begins further left.
inline constexpr int32_t kUnmerged = -1, kJoined = -2;

// Merges the symbols of one word in place. `symbols` contains token ids or kUnmerged. Each step
// merges the leftmost pair of the lowest rank. A merged symbol is stored at its first position; its
// other positions become kJoined or lower. O(n log n) in the worst case, O(n) if few distinct ranks
// occur, as in long repetitions. Uses about five bytes of memory per symbol in addition to the
// array. At most 2^31 - 2 symbols.
void MergeSymbols(const MergeTable& table, std::vector<int32_t>* symbols);

}  // namespace quintet
