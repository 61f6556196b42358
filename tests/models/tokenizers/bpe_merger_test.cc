#include "models/tokenizers/bpe_merger.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

// The definition of BPE: merges the leftmost pair of the lowest rank until no pair merges.
void MergeSlowly(const MergeTable& table, std::vector<int32_t>* symbols) {
  std::vector<size_t> places(symbols->size());  // positions of the remaining symbols
  std::iota(places.begin(), places.end(), 0);
  const auto id = [&](size_t i) { return (*symbols)[places[i]]; };
  while (places.size() > 1) {
    size_t best = 0;
    const MergeTable::Merge* chosen = nullptr;
    for (size_t i = 0; i + 1 < places.size(); ++i) {
      const MergeTable::Merge* merge = table.Find(id(i), id(i + 1));
      if (merge != nullptr && (chosen == nullptr || merge->rank < chosen->rank)) {
        chosen = merge;
        best = i;
      }
    }
    if (chosen == nullptr) return;
    (*symbols)[places[best]] = chosen->result;
    (*symbols)[places[best + 1]] = kJoined;
    places.erase(places.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST_CASE("Short and long words merge as defined", "[bpe]") {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    // A random merge table over few symbols. It has many merges, including merges of symbols that
    // are themselves results of merges, and ranks in any order, some of them equal.
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
    std::vector<int32_t> word(random() % (round % 2 == 0 ? 33 : 300));
    for (int32_t& symbol : word) symbol = static_cast<int32_t>(random() % symbols);
    std::vector<int32_t> expected = word;
    MergeSlowly(table, &expected);
    MergeSymbols(table, &word);
    for (int32_t& symbol : word) symbol = std::max(symbol, kJoined);
    REQUIRE(word == expected);
  }
}

TEST_CASE("A long repetition merges as defined", "[bpe]") {
  // Symbol i stands for a run of 2^i equal letters: two symbols i merge into symbol i + 1, with
  // rank i. While the merge queue of rank i drains, the queue of rank i + 1 fills.
  MergeTable table;
  for (int32_t i = 0; i < 7; ++i) table.Set(i, i, {static_cast<uint32_t>(i), i + 1});
  for (const size_t length : {63, 64, 65, 1000, 1023, 1025}) {
    std::vector<int32_t> word(length, 0);
    std::vector<int32_t> expected = word;
    MergeSlowly(table, &expected);
    MergeSymbols(table, &word);
    for (int32_t& symbol : word) symbol = std::max(symbol, kJoined);
    CHECK(word == expected);
  }
}

TEST_CASE("Unmerged symbols never merge", "[bpe]") {
  MergeTable table;
  table.Set(0, 0, {0, 1});
  for (const size_t more : {0, 40}) {
    std::vector<int32_t> word = {0, kUnmerged, 0, 0};
    word.resize(word.size() + more, kUnmerged);
    MergeSymbols(table, &word);
    CHECK(word[0] == 0);
    CHECK(word[1] == kUnmerged);
    CHECK(word[2] == 1);
    CHECK(word[3] <= kJoined);
  }
}

}  // namespace
}  // namespace quintet
