// Finds all positions in a text at which a key of a small set begins (added tokens, user-defined
// symbols). Takes O(n) time for a text of n bytes, whatever the lengths and shared prefixes of the
// keys. An Aho-Corasick automaton (1975) of the reversed keys reads the text backwards and so
// knows, at each byte, the longest key that begins there. A forward scan would not be linear: to
// find the longest match it must look ahead, and after the match it starts again at the match's
// end. If the text repeats the beginning of a long key, it reads the same bytes again and again.
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

// The matches of a KeySearch in a text. At each byte there is at most one: the longest key that
// begins there. Can be iterated once, forwards.
class KeyMatches {
 public:
  // The first match that begins at or after byte `at`; null if there is none. `at` must not
  // decrease from call to call. The pointer is valid until the next call.
  const KeyMatch* From(size_t at) {
    while (!descending_.empty() && descending_.back().begin < at) descending_.pop_back();
    return descending_.empty() ? nullptr : &descending_.back();
  }
  // Length in bytes of the match that begins exactly at byte `at`; 0 if there is none. `at` must
  // not decrease from call to call.
  size_t LengthAt(size_t at) {
    const KeyMatch* match = From(at);
    return match != nullptr && match->begin == at ? match->length : 0;
  }

 private:
  friend class KeySearch;
  std::vector<KeyMatch> descending_;  // sorted by descending begin
};

// Immutable after construction, and thread safe.
class KeySearch {
 public:
  KeySearch() = default;
  // `keys`: pairs of a key and its value. Keys must be unique and not empty.
  explicit KeySearch(const std::vector<std::pair<std::string_view, int32_t>>& keys);
  // Returns all matches in `text`, which must be shorter than 2^32 bytes.
  KeyMatches Find(std::string_view text) const;

 private:
  // Aho-Corasick data of a node of the trie reversed_. In the comments on the members, S is the
  // byte string that leads to the node.
  struct Link {
    uint32_t fail = 0;    // node of the longest proper suffix of S; 0: none
    uint32_t length = 0;  // bytes of the longest key that is a suffix of S; 0: none
    int32_t value = -1;   // value of that key
  };
  Trie reversed_;
  std::vector<Link> links_;  // [nodes of reversed_]
};

}  // namespace quintet
