// SentencePiece's precompiled normalization rules: a double-array trie (in the layout of
// darts-clone) that maps byte strings to replacements. The data comes from model files and is
// untrusted: every step of a search is bounds-checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

class Charsmap {
 public:
  // Limit on the length of a replacement; Parse rejects longer ones. Without a limit a hostile file
  // could turn each letter into megabytes. The longest replacement in SentencePiece's own rules has
  // 33 bytes.
  static constexpr int kMaxReplacementBytes = 128;
  // Limit on the bytes that a rule matches. Parse rejects a trie with longer rules, and thereby one
  // with a cycle (endless rules). The limit is needed because a search takes up to this number of
  // steps at each character of a text. The longest match in SentencePiece's own rules has 12 bytes.
  static constexpr int kMaxRuleBytes = 128;
  // Layout of `blob`: u32 size of the trie in bytes; the trie's units (u32 each, little-endian);
  // NUL-terminated replacements. An empty blob means no rules. The message of an
  // INVALID_ARGUMENT error starts with `where`.
  static absl::StatusOr<Charsmap> Parse(std::string_view blob, const std::string& where);

  bool empty() const { return units_.empty(); }

  struct Match {
    size_t length = 0;  // matched bytes of the text; 0 if no rule matches
    std::string_view replacement;
  };
  // True if no rule matches the ASCII character c alone, and no rule begins with c followed by the
  // ASCII character `next`. `next` = 128 stands for the end of the text.
  bool HasNoRule(uint8_t c, uint8_t next) const { return no_rule_[c * 129u + next]; }
  // Returns the shortest rule that matches a prefix of `text` (Hugging Face's tokenizers also take
  // the shortest).
  Match Shortest(std::string_view text) const;
  // Returns the longest rule that matches a prefix of `text` (as SentencePiece itself does).
  Match Longest(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  Match Find(std::string_view text, bool longest) const;
  bool HasLongRules() const;
  void FindAsciiWithoutRule();

  std::string replacements_;
  std::vector<bool> no_rule_ = std::vector<bool>(128 * 129, true);
};

}  // namespace quintet
