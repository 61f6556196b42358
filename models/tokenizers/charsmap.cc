#include "models/tokenizers/charsmap.h"

#include "absl/strings/str_cat.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

// Fields of a unit (node) of the double-array trie, in the layout of darts-clone.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

uint32_t ReadU32(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i]));
  };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::string_view blob, const std::string& where) {
  Charsmap map;
  if (blob.empty()) return map;
  const auto bad = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": precompiled_charsmap: ", what...));
  };
  if (blob.size() < 8) return bad("expected at least 8 bytes, got ", blob.size());
  const uint32_t trie_bytes = ReadU32(blob, 0);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4) {
    return bad("expected a trie of a multiple of 4 bytes within ", blob.size() - 4, ", got ",
               trie_bytes);
  }
  map.units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = ReadU32(blob, 4 + i * 4);
  map.replacements_ = std::string(blob.substr(4 + trie_bytes));
  if (map.replacements_.empty() || map.replacements_.back() != '\0') {
    return bad("expected replacements that end in NUL");
  }
  if (!IsUtf8(map.replacements_)) return bad("expected replacements in UTF-8");
  for (size_t begin = 0, end; begin < map.replacements_.size(); begin = end + 1) {
    end = map.replacements_.find('\0', begin);
    if (end - begin > kMaxReplacementBytes) {
      return bad("expected replacements of at most ", kMaxReplacementBytes, " bytes, got ",
                 end - begin);
    }
  }
  if (map.HasLongRules()) {
    return bad("expected rules for at most ", kMaxRuleBytes,
               " bytes, got longer ones or a cycle in the trie");
  }
  map.FindAsciiWithoutRule();
  return map;
}

// Returns whether a rule can match more than kMaxRuleBytes bytes. Follows all paths through the
// array at once: reachable[p] means that a search can be at position p after `bytes` bytes.
// Following one path at a time could take exponential time, because paths can share nodes: the
// array is untrusted and need not be a tree, and even valid arrays share suffixes.
bool Charsmap::HasLongRules() const {
  std::vector<bool> reachable(units_.size() + 256), next(reachable.size());
  if (const uint32_t root = Offset(units_[0]); root < reachable.size()) reachable[root] = true;
  for (int bytes = 0; bytes <= kMaxRuleBytes; ++bytes) {
    bool any_reachable = false;
    next.assign(next.size(), false);
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
      const uint32_t label = Label(units_[unit]);
      if (label > 0xFF || !reachable[unit ^ label]) continue;
      any_reachable = true;
      if (const uint32_t place = unit ^ Offset(units_[unit]); place < next.size())
        next[place] = true;
    }
    if (!any_reachable) return false;
    reachable.swap(next);
  }
  return true;
}

void Charsmap::FindAsciiWithoutRule() {
  for (uint32_t c = 0; c < 128; ++c) {
    const uint32_t at = Offset(units_[0]) ^ c;
    if (at >= units_.size() || Label(units_[at]) != c) continue;
    const uint32_t children = at ^ Offset(units_[at]);
    for (uint32_t next = 0; next <= 128; ++next) {
      const uint32_t child = children ^ next;
      const bool has_child = next < 128 && child < units_.size() && Label(units_[child]) == next;
      if (HasLeaf(units_[at]) || has_child) no_rule_[c * 129 + next] = false;
    }
  }
}

Charsmap::Match Charsmap::Shortest(std::string_view text) const { return Find(text, false); }

Charsmap::Match Charsmap::Longest(std::string_view text) const { return Find(text, true); }

Charsmap::Match Charsmap::Find(std::string_view text, bool longest) const {
  Match match;
  if (units_.empty()) return match;
  uint32_t position = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t label = static_cast<uint8_t>(text[i]);
    position ^= label;
    if (position >= units_.size() || Label(units_[position]) != label) break;
    const uint32_t unit = units_[position];
    position ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (position >= units_.size()) break;
    const uint32_t value = Value(units_[position]);
    if (value >= replacements_.size()) continue;
    const std::string_view rest = std::string_view(replacements_).substr(value);
    match = {i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return match;
}

}  // namespace quintet
