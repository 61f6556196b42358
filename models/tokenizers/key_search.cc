#include "models/tokenizers/key_search.h"

#include <string>

namespace quintet {

KeySearch::KeySearch(const std::vector<std::pair<std::string_view, int32_t>>& keys) {
  std::vector<std::string> spellings;
  spellings.reserve(keys.size());
  std::vector<std::pair<std::string_view, int32_t>> reversed;
  for (const auto& [key, value] : keys) {
    spellings.emplace_back(key.rbegin(), key.rend());
    reversed.emplace_back(spellings.back(), static_cast<int32_t>(reversed.size()));
  }
  reversed_ = Trie(std::move(reversed));
  const std::vector<Trie::Node>& nodes = reversed_.nodes();
  links_.resize(nodes.size());
  // The failure link of a node leads to a node with a shorter string. Nodes are in breadth-first
  // order; therefore the links of all nodes with shorter strings are already set.
  for (uint32_t parent = 0; parent < nodes.size(); ++parent) {
    for (uint32_t i = 0; i < nodes[parent].children; ++i) {
      const uint32_t node = nodes[parent].first_child + i;
      Link& link = links_[node];
      for (uint32_t shorter = parent; shorter != 0 && link.fail == 0;) {
        shorter = links_[shorter].fail;
        link.fail = reversed_.Child(shorter, nodes[node].label);
      }
      if (nodes[node].value < 0) {
        link.length = links_[link.fail].length;
        link.value = links_[link.fail].value;
      } else {
        const auto& [key, value] = keys[static_cast<size_t>(nodes[node].value)];
        link.length = static_cast<uint32_t>(key.size());
        link.value = value;
      }
    }
  }
}

KeyMatches KeySearch::Find(std::string_view text) const {
  KeyMatches matches;
  if (links_.empty()) return matches;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    const uint8_t byte = static_cast<uint8_t>(text[at]);
    uint32_t next = reversed_.Child(node, byte);
    while (next == 0 && node != 0) {
      node = links_[node].fail;
      next = reversed_.Child(node, byte);
    }
    node = next;
    if (node == 0) continue;
    const Link& link = links_[node];
    if (link.length > 0)
      matches.descending_.push_back({static_cast<uint32_t>(at), link.length, link.value});
  }
  return matches;
}

}  // namespace quintet
