// A trie over a set of byte strings (keys). It finds all pieces of a vocabulary that are prefixes
// of a text; KeySearch is built on it. Immutable after construction.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quintet {

class Trie {
 public:
  Trie() = default;
  // `keys`: pairs of a key and its value (>= 0). Keys must be unique and not empty.
  explicit Trie(std::vector<std::pair<std::string_view, int32_t>> keys);

  // Calls on_key(length, value) for each key that is a prefix of `text`, shortest first. Takes up
  // to as many steps as the longest key has bytes, so a caller that searches at every byte of a
  // text must limit the length of keys.
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

  // A node represents a prefix of a key. The children of a node are adjacent in nodes(), sorted by
  // label, and come after the node. Node 0 is the root.
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t value = -1;  // value of the key that ends here; -1: none
  };
  const std::vector<Node>& nodes() const { return nodes_; }  // empty if there are no keys
  // Returns the index of the node's child with this label; 0 if there is none. Must not be called
  // on a trie without keys.
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
