#include "models/tokenizers/pattern.h"

#include <cstring>
#include <tuple>

#include "models/tokenizers/unicode.h"

namespace quintet {

bool CharacterClass::Compute(uint32_t code_point) const {
  const UnicodeTables& unicode = Unicode();
  bool member = (categories >> unicode.category[code_point] & 1) != 0;
  if (white_space || not_white_space) {
    member |= unicode.Has(code_point, kWhiteSpace) ? white_space : not_white_space;
  }
  if (word || not_word) member |= unicode.Has(code_point, kWord) ? word : not_word;
  for (const auto& [low, high] : ranges) member |= code_point >= low && code_point <= high;
  return member != negated;
}

void CharacterClass::FillAscii() {
  for (uint32_t c = 0; c < 128; ++c) {
    if (Compute(c)) ascii[c >> 6] |= uint64_t{1} << (c & 63);
  }
}

Pattern Pattern::Literal(std::string_view text) {
  Pattern pattern;
  pattern.literal_ = std::string(text);
  return pattern;
}

namespace {

// Finds matches by depth-first search over states (step of the compiled pattern, position in the
// text). A kSplit step has two continuations; the second is tried if the first fails. If matching
// failed from a state once, it fails again; therefore the search visits a kSplit step at most once
// per position. The visited set has one row of bits (one bit per kSplit step) for each text
// position, from the start of the match to the rightmost position at which a kSplit step was
// visited. Rows before the start are dropped, because a search never moves left of its start. The
// set stays small, because most patterns match long words without passing a kSplit step.
class PatternMatcher {
 public:
  PatternMatcher(std::string_view text, const std::vector<Pattern::Step>& steps,
                 const std::vector<CharacterClass>& classes)
      : text_(text), steps_(steps), classes_(classes), row_bytes_(RowBytes(steps)) {}

  // Returns whether the pattern matches at byte `start`. *end receives the end of the match.
  bool MatchAt(size_t start, size_t* end) {
    DropRows(start);
    backtrack_.clear();
    uint32_t step = 0;
    size_t at = start;
    while (!RunPath(step, at, end)) {
      if (backtrack_.empty()) return false;
      std::tie(step, at) = backtrack_.back();
      backtrack_.pop_back();
    }
    // Clear the visited bits at the position where the match ends and the next search starts. They
    // do not prove that matching fails from these states: the successful path may have set them.
    const size_t row = (*end - first_) * row_bytes_;
    if (row < visited_.size())
      std::fill_n(visited_.begin() + static_cast<ptrdiff_t>(row), row_bytes_, 0);
    return true;
  }

 private:
  static size_t RowBytes(const std::vector<Pattern::Step>& steps) {
    size_t splits = 0;
    for (const Pattern::Step& step : steps) splits += step.kind == Pattern::Step::kSplit;
    return (splits + 7) / 8;
  }

  // visited_ has one row of bits per text position. Drops the rows for positions before `start`,
  // but only if they are more than half of all rows, so that the remaining rows are not moved
  // often.
  void DropRows(size_t start) {
    const size_t dropped = (start - first_) * row_bytes_;
    if (dropped >= visited_.size()) {
      visited_.clear();
      first_ = start;
    } else if (dropped > visited_.size() / 2) {
      visited_.erase(visited_.begin(), visited_.begin() + static_cast<ptrdiff_t>(dropped));
      first_ = start;
    }
  }

  // Marks a kSplit step (a step with two continuations) as visited at byte `at` of the text.
  // `split` is the step's number among all kSplit steps. Returns false if it was already marked
  // there.
  bool MarkVisited(uint32_t split, size_t at) {
    const size_t row = (at - first_) * row_bytes_;
    if (row >= visited_.size()) visited_.resize(row + row_bytes_, 0);
    uint8_t& byte = visited_[row + split / 8];
    const uint8_t bit = static_cast<uint8_t>(1 << (split & 7));
    if ((byte & bit) != 0) return false;
    byte |= bit;
    return true;
  }

  bool ClassMatches(uint32_t index, size_t at, int* length) const {
    return at < text_.size() && classes_[index].Has(DecodeUtf8(text_.data() + at, length));
  }

  bool RunPath(uint32_t pc, size_t at, size_t* end) {
    using Kind = Pattern::Step::Kind;
    for (;;) {
      const Pattern::Step& step = steps_[pc];
      int length = 0;
      bool matches = true;
      switch (step.kind) {
        case Kind::kClass:
          matches = ClassMatches(step.first, at, &length);
          at += static_cast<size_t>(length);
          break;
        case Kind::kSplit: {
          if (!MarkVisited(step.number, at)) return false;
          backtrack_.push_back({step.second, static_cast<uint32_t>(at)});
          pc = step.first;
          continue;
        }
        case Kind::kJump:
          pc = step.first;
          continue;
        case Kind::kLookAhead:
          matches = ClassMatches(step.first, at, &length);
          break;
        case Kind::kNegativeLookAhead:
          matches = !ClassMatches(step.first, at, &length);
          break;
        case Kind::kLineStart:
          matches = at == 0 || (text_[at - 1] == '\n' && at < text_.size());
          break;
        case Kind::kLineEnd:
          matches = at == text_.size() || text_[at] == '\n';
          break;
        case Kind::kTextStart:
          matches = at == 0;
          break;
        case Kind::kTextEnd:
          matches = at == text_.size();
          break;
        case Kind::kFinalLoop:
          while (ClassMatches(step.first, at, &length)) at += static_cast<size_t>(length);
          *end = at;
          return true;
        case Kind::kMatch:
          *end = at;
          return true;
      }
      if (!matches) return false;
      ++pc;
    }
  }

  std::string_view text_;
  const std::vector<Pattern::Step>& steps_;
  const std::vector<CharacterClass>& classes_;
  size_t row_bytes_;
  size_t first_ = 0;  // text position of row 0
  std::vector<uint8_t> visited_;
  std::vector<std::pair<uint32_t, uint32_t>> backtrack_;  // step, position
};

// Returns the first position of `literal` in `text` at or after byte `at`. Short literals are
// searched with string_view::find, which is faster in ordinary texts but takes up to (text size) *
// (literal size) steps. Longer literals are searched with memmem, which is linear.
size_t FindLiteral(std::string_view text, std::string_view literal, size_t at) {
  constexpr size_t kShort = 16;
  if (literal.size() <= kShort) return text.find(literal, at);
  const void* found = memmem(text.data() + at, text.size() - at, literal.data(), literal.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace

void Pattern::ForEachMatch(std::string_view text,
                           absl::FunctionRef<void(size_t, size_t)> on_match) const {
  if (steps_.empty()) {
    if (literal_.empty()) return;
    for (size_t at = FindLiteral(text, literal_, 0); at != std::string_view::npos;
         at = FindLiteral(text, literal_, at + literal_.size())) {
      on_match(at, at + literal_.size());
    }
    return;
  }
  PatternMatcher matcher(text, steps_, classes_);
  size_t last_end = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    size_t end = 0;
    if (matcher.MatchAt(at, &end) && !(end == at && end == last_end)) {
      on_match(at, end);
      last_end = end;
      if (end > at) {
        at = end;
        continue;
      }
    }
    if (at == text.size()) return;
    int length;
    DecodeUtf8(text.data() + at, &length);
    at += static_cast<size_t>(length);
  }
}

}  // namespace quintet
