// The subset of regular expressions that tokenizer files use. Matching takes time proportional to
// the length of the text times that of the pattern; there is no exponential backtracking.
//
// Supported, with the meaning of Oniguruma (the engine of Hugging Face's tokenizers): literals, .,
// [...] with ranges and negation, \p{L} and the other general categories, \P, \s \S \d \D \w \W and
// control escapes, groups ( ) (?: ) (?i: ), |, greedy * + ? {m} {m,} {m,n}, look-ahead (?= ) (?! )
// over one character, ^ $ \A \z.
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
  uint64_t ascii[2] = {0, 0};  // bit set of the members below 128, after negation
  uint32_t categories = 0;     // bit Category: its code points are members
  bool white_space = false, not_white_space = false, word = false, not_word = false;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // both ends inclusive
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
  // Compiles a pattern. Returns UNIMPLEMENTED, quoting the pattern, for unsupported syntax and for
  // a pattern that compiles to too many steps; INVALID_ARGUMENT for one that is not UTF-8.
  static absl::StatusOr<Pattern> Compile(std::string_view regex, const std::string& where);
  // A pattern that matches exactly these bytes.
  static Pattern Literal(std::string_view text);

  // Calls on_match(begin, end) for each match, from left to right. Matches do not overlap. `text`
  // must be valid UTF-8.
  void ForEachMatch(std::string_view text, absl::FunctionRef<void(size_t, size_t)> on_match) const;

  // One instruction of the compiled pattern.
  struct Step {
    enum Kind : uint8_t {
      kClass,
      kSplit,
      kJump,
      kLookAhead,
      kNegativeLookAhead,
      kLineStart,
      kLineEnd,
      kTextStart,
      kTextEnd,
      kMatch,
      // Matches as many characters of one class as possible, and completes the whole match. `first`
      // is the index of the class. This step replaces a loop at the end of a pattern; such a loop
      // never has to backtrack.
      kFinalLoop,
    };
    Kind kind;
    uint32_t first = 0, second = 0;  // class index, or jump targets with the preferred one first
    uint32_t number = 0;             // index of a kSplit among all splits
  };

 private:
  friend class PatternCompiler;
  std::string literal_;  // used if steps_ is empty
  std::vector<Step> steps_;
  std::vector<CharacterClass> classes_;
};

}  // namespace quintet
