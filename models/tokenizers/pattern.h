// The subset of regular expressions that tokenizer files use, matched in time linear in text x
// pattern: no backtracking blow-up.
//
// Supported, with Oniguruma's meaning (that of HF's tokenizers): literals, ., [...] with ranges and
// negation, \p{L} and the other general categories, \P, \s \S \d \D \w \W and control escapes,
// groups ( ) (?: ) (?i: ), |, greedy * + ? {m} {m,} {m,n}, look-ahead (?= ) (?! ) over one
// character, ^ $ \A \z.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace quintet {

// A set of code points.
struct CharacterClass {
  uint64_t ascii[2] = {0, 0};  // bits of the members below 128, negation included
  uint32_t categories = 0;     // bit (1 << Category): members
  bool white_space = false, not_white_space = false, word = false, not_word = false;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // inclusive
  bool negated = false;

  bool Has(uint32_t code_point) const {
    return code_point < 128 ? (ascii[code_point >> 6] >> (code_point & 63) & 1) != 0
                            : Compute(code_point);
  }
  bool Compute(uint32_t code_point) const;
  void FillAscii();
};

class Pattern {
 public:
  // UNIMPLEMENTED, naming the pattern, for syntax outside of the subset; INVALID_ARGUMENT for
  // broken or too large ones.
  static absl::StatusOr<Pattern> Compile(std::string_view regex, const std::string& where);
  // Matches exactly these bytes.
  static Pattern Literal(std::string_view text);

  // Calls on_match with the bytes [begin, end) of each match in turn, leftmost first, not
  // overlapping. `text` is valid UTF-8.
  void ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t, size_t)> on_match) const;

  // One instruction of the compiled pattern.
  struct Step {
    enum Kind : uint8_t {
      kClass,
      kSplit,
      kJump,
      kAhead,
      kNotAhead,
      kLineStart,
      kLineEnd,
      kTextStart,
      kTextEnd,
      kMatch,
      kLastRun,
    };
    Kind kind;
    uint32_t first = 0, second = 0;  // class index; targets, the preferred one first
    uint32_t number = 0;             // of a split among the splits
    // kLastRun: all that follow of class `first`, then the pattern matches: a loop that nothing can
    // make give characters back.
  };

 private:
  friend class PatternCompiler;
  std::string literal_;  // when steps_ is empty
  std::vector<Step> steps_;
  std::vector<CharacterClass> classes_;
};

}  // namespace quintet
