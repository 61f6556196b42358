// Where the keys of a small set begin in a text: added tokens, user-defined symbols. Linear in the
// text however long the keys are and however much they share: the automaton of Aho and Corasick
// (1975) over the reversed keys reads the text from its end, and so knows at each byte the longest
// key that begins there. Reading forwards would not do: after the longest match at a place the
// search goes back to the end of that match, over and over where a much longer key nearly matches.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizers/trie.h"

namespace quintet {

struct KeyMatch {
  uint32_t begin, length;
  int32_t value;
};

// The longest key at each byte of a text where one begins, to be walked through once.
class KeyMatches {
 public:
  // The first match that begins at byte `at` or behind it; null when there is none. `at` never
  // descends from call to call; the pointer is good until the next.
  const KeyMatch* From(size_t at) {
    while (!backwards_.empty() && backwards_.back().begin < at) backwards_.pop_back();
    return backwards_.empty() ? nullptr : &backwards_.back();
  }
  // Length of the match that begins at byte `at` itself; 0: none does. As From.
  size_t LengthAt(size_t at) {
    const KeyMatch* match = From(at);
    return match != nullptr && match->begin == at ? match->length : 0;
  }

 private:
  friend class KeySearch;
  std::vector<KeyMatch> backwards_;  // by descending begin
};

// Immutable after building, and thread safe.
class KeySearch {
 public:
  KeySearch() = default;
  // Keys with their values; each key once, none empty.
  explicit KeySearch(const std::vector<std::pair<std::string_view, int32_t>>& keys);
  // `text` has fewer than 2^32 bytes.
  KeyMatches Find(std::string_view text) const;

 private:
  // What a node of the trie knows of the shorter keys' beginnings that end as its own does.
  struct Link {
    uint32_t fail = 0;    // the longest of them; 0: none
    uint32_t length = 0;  // of the longest whole key that ends here; 0: none
    int32_t value = -1;   // that key's
  };
  Trie reversed_;
  std::vector<Link> links_;  // one a node
};

}  // namespace quintet
