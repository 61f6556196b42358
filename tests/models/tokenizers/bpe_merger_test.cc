#include "models/tokenizers/bpe_merger.h"

#include <random>
#include <vector>

#include "catch2/catch.hpp"

namespace quintet {
namespace {

// The definition: the lowest rank, the leftmost of those, until none is left.
void MergeSlowly(const MergeTable& table, std::vector<BpeSymbol>* symbols) {
  for (;;) {
    size_t best = symbols->size();
    const MergeTable::Merge* chosen = nullptr;
    for (size_t i = 0; i + 1 < symbols->size(); ++i) {
      const MergeTable::Merge* merge = table.Find((*symbols)[i].id, (*symbols)[i + 1].id);
      if (merge != nullptr && (chosen == nullptr || merge->rank < chosen->rank)) {
        chosen = merge;
        best = i;
      }
    }
    if (chosen == nullptr) return;
    (*symbols)[best] = {chosen->result, (*symbols)[best].begin, (*symbols)[best + 1].end};
    symbols->erase(symbols->begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST_CASE("Short and long words merge as the definition says", "[bpe]") {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    // A random table over few symbols: many merges, with results that merge on, and ranks in any
    // order (equal ones too).
    MergeTable table;
    const int symbols = 2 + static_cast<int>(random() % 6);
    for (int i = 0; i < symbols * 3; ++i) {
      table.Set(
          static_cast<int32_t>(random() % symbols), static_cast<int32_t>(random() % symbols),
          {static_cast<uint32_t>(random() % 40), symbols + static_cast<int32_t>(random() % 20)});
      table.Set(symbols + static_cast<int32_t>(random() % 20),
                static_cast<int32_t>(random() % symbols),
                {static_cast<uint32_t>(random() % 40),
                 symbols + 20 + static_cast<int32_t>(random() % 20)});
    }
    std::vector<BpeSymbol> word;
    const uint32_t length = random() % (round % 2 == 0 ? 32 : 300);
    for (uint32_t i = 0; i < length; ++i)
      word.push_back({static_cast<int32_t>(random() % symbols), i, i + 1});
    std::vector<BpeSymbol> expected = word;
    MergeSlowly(table, &expected);
    MergeSymbols(table, &word);
    REQUIRE(word.size() == expected.size());
    for (size_t i = 0; i < word.size(); ++i) {
      REQUIRE(word[i].id == expected[i].id);
      REQUIRE(word[i].begin == expected[i].begin);
      REQUIRE(word[i].end == expected[i].end);
    }
  }
}

TEST_CASE("Negative symbols never merge", "[bpe]") {
  MergeTable table;
  table.Set(0, 0, {0, 1});
  std::vector<BpeSymbol> word = {{0, 0, 1}, {-1, 1, 2}, {0, 2, 3}, {0, 3, 4}};
  MergeSymbols(table, &word);
  REQUIRE(word.size() == 3);
  CHECK(word[2].id == 1);
}

}  // namespace
}  // namespace quintet
