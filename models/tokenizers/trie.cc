#include "models/tokenizers/trie.h"

#include <algorithm>

namespace quintet {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  if (keys.empty()) return;
  std::sort(keys.begin(), keys.end());
  // The keys below a node: [begin, end) of the sorted keys. All of them share their first `depth`
  // bytes. Nodes are built breadth-first; hence siblings are adjacent.
  struct Range {
    uint32_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, static_cast<uint32_t>(keys.size()), 0}};
  nodes_.resize(1);
  for (size_t node = 0; node < ranges.size(); ++node) {
    Range range = ranges[node];
    if (keys[range.begin].first.size() == range.depth) {
      nodes_[node].value = keys[range.begin].second;
      ++range.begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const uint8_t label = static_cast<uint8_t>(keys[range.begin].first[range.depth]);
      uint32_t end = range.begin;
      while (end < range.end && static_cast<uint8_t>(keys[end].first[range.depth]) == label) ++end;
      ranges.push_back({range.begin, end, range.depth + 1});
      nodes_.push_back({0, 0, label, -1});
      ++nodes_[node].children;
      range.begin = end;
    }
  }
  root_children_.assign(256, 0);
  for (uint32_t i = 0; i < nodes_[0].children; ++i) {
    root_children_[nodes_[nodes_[0].first_child + i].label] = nodes_[0].first_child + i;
  }
}

}  // namespace quintet
