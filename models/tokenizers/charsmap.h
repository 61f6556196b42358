// SentencePiece's precompiled normalisation rules: a double-array trie (darts-clone's layout) from
// byte strings to replacements. The bytes come from model files and are not trusted: every step of
// a search is bounds-checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

class Charsmap {
 public:
  // `blob`: u32 trie bytes, trie units (u32 each, little-endian), NUL-terminated replacements.
  // Empty: no rules. Errors start with `where`. The longest replacement of SentencePiece's own
  // rules has 33 bytes; the limit keeps a hostile one from turning each letter into megabytes.
  static constexpr int kMaxReplacementBytes = 128;
  // Nor may a rule be for more bytes than this, or the array lead in a circle: a search takes as
  // many steps at each character of a text. The longest of SentencePiece's own are for 12 bytes.
  static constexpr int kMaxRuleBytes = 128;
  static absl::StatusOr<Charsmap> Parse(std::string_view blob, const std::string& where);

  bool empty() const { return units_.empty(); }

  struct Match {
    size_t length = 0;  // bytes of the text; 0 when no rule matches
    std::string_view replacement;
  };
  // True when no rule starts with ASCII character c followed by ASCII character `next`, or with c
  // alone; next 128: end of text.
  bool Untouched(uint8_t c, uint8_t next) const { return untouched_[c * 129u + next]; }
  // The shortest rule that `text` begins with, as HF's tokenizers choose it.
  Match Shortest(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  bool HasLongRules() const;
  void FindUntouched();

  std::string replacements_;
  std::vector<bool> untouched_ = std::vector<bool>(128 * 129, true);
};

}  // namespace quintet
