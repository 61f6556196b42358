// Byte trie over the keys of a set: for finding all pieces of a vocabulary that begin a text, and
// the ground on which KeySearch builds. Immutable after building.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quintet {

class Trie {
 public:
  Trie() = default;
  // Keys with their values (>= 0); each key once, none empty.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> keys);

  // Calls on_key(length, value) for each key that `text` starts with, shortest first. Goes as deep
  // as the longest key: who asks at every byte of a text bounds the length of keys.
  template <typename OnKey>
  void ForEachPrefix(std::string_view text, OnKey on_key) const {
    if (nodes_.empty()) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) on_key(i + 1, nodes_[node].value);
    }
  }

  // A node stands for the beginning of a key; the children of a node are neighbours, ordered by
  // label, and come after it. 0 is the root.
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = -1;  // of the key that ends here; -1: none
  };
  const std::vector<Node>& nodes() const { return nodes_; }  // empty without keys
  // 0 when there is none. There are nodes.
  uint32_t Child(uint32_t parent, uint8_t label) const {
    if (parent == 0) return root_children_[label];
    uint32_t low = nodes_[parent].first_child, count = nodes_[parent].children;
    while (count > 4) {
      const uint32_t half = count / 2;
      if (nodes_[low + half].label <= label) {
        low += half;
        count -= half;
      } else {
        count = half;
      }
    }
    for (uint32_t child = low; child < low + count; ++child) {
      if (nodes_[child].label == label) return child;
    }
    return 0;
  }

 private:
  std::vector<Node> nodes_;
  std::vector<uint32_t> root_children_;  // [256]
};

}  // namespace quintet
