#include "models/tokenizers/pattern.h"

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

// Depth-first search over (step, position) that enters no split twice: a state that failed once
// fails from every start. One row of bits a text position.
class Matcher {
 public:
  Matcher(std::string_view text, const std::vector<Pattern::Step>& steps,
          const std::vector<CharacterClass>& classes)
      : text_(text),
        steps_(steps),
        classes_(classes),
        row_bytes_(RowBytes(steps)),
        entered_((text.size() + 1) * row_bytes_, 0) {}

  // True with *end when the pattern matches at `start`.
  bool MatchAt(size_t start, size_t* end) {
    pending_.assign(1, {0, start});
    while (!pending_.empty()) {
      const auto [step, at] = pending_.back();
      pending_.pop_back();
      if (!Follow(step, at, end)) continue;
      // States at the end of a match did not fail; the next match starts there.
      std::fill_n(entered_.begin() + static_cast<ptrdiff_t>(*end * row_bytes_), row_bytes_, 0);
      return true;
    }
    return false;
  }

 private:
  static size_t RowBytes(const std::vector<Pattern::Step>& steps) {
    size_t splits = 0;
    for (const Pattern::Step& step : steps) splits += step.kind == Pattern::Step::kSplit;
    return (splits + 7) / 8;
  }

  bool ClassMatches(uint32_t index, size_t at, int* length) const {
    return at < text_.size() && classes_[index].Has(DecodeUtf8(text_.data() + at, length));
  }

  bool Follow(uint32_t pc, size_t at, size_t* end) {
    using Kind = Pattern::Step::Kind;
    for (;;) {
      const Pattern::Step& step = steps_[pc];
      int length = 0;
      bool goes_on = true;
      switch (step.kind) {
        case Kind::kClass:
          goes_on = ClassMatches(step.first, at, &length);
          at += static_cast<size_t>(length);
          break;
        case Kind::kSplit: {
          uint8_t& row = entered_[at * row_bytes_ + step.number / 8];
          const uint8_t bit = static_cast<uint8_t>(1 << (step.number & 7));
          if ((row & bit) != 0) return false;
          row |= bit;
          pending_.push_back({step.second, at});
          pc = step.first;
          continue;
        }
        case Kind::kJump:
          pc = step.first;
          continue;
        case Kind::kAhead:
          goes_on = ClassMatches(step.first, at, &length);
          break;
        case Kind::kNotAhead:
          goes_on = !ClassMatches(step.first, at, &length);
          break;
        case Kind::kLineStart:
          goes_on = at == 0 || (text_[at - 1] == '\n' && at < text_.size());
          break;
        case Kind::kLineEnd:
          goes_on = at == text_.size() || text_[at] == '\n';
          break;
        case Kind::kTextStart:
          goes_on = at == 0;
          break;
        case Kind::kTextEnd:
          goes_on = at == text_.size();
          break;
        case Kind::kLastRun:
          while (ClassMatches(step.first, at, &length)) at += static_cast<size_t>(length);
          *end = at;
          return true;
        case Kind::kMatch:
          *end = at;
          return true;
      }
      if (!goes_on) return false;
      ++pc;
    }
  }

  std::string_view text_;
  const std::vector<Pattern::Step>& steps_;
  const std::vector<CharacterClass>& classes_;
  size_t row_bytes_;
  std::vector<uint8_t> entered_;
  std::vector<std::pair<uint32_t, size_t>> pending_;
};

}  // namespace

void Pattern::ForEachMatch(std::string_view text,
                           absl::FunctionRef<void(size_t, size_t)> on_match) const {
  if (steps_.empty()) {
    if (literal_.empty()) return;
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      on_match(at, at + literal_.size());
    }
    return;
  }
  Matcher matcher(text, steps_, classes_);
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
