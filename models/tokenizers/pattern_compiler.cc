// Compiles a regular expression to the steps of a Pattern, by a recursive-descent parser of bounded
// depth.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/pattern.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxPatternSteps = 256;  // PatternMatcher stores a bit per split and byte of text
constexpr uint32_t kMaxRepeat = 100;

std::optional<uint32_t> CategoryMask(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
  if (name.empty() || name.size() > 2) return std::nullopt;
  uint32_t mask = 0;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i].substr(0, name.size()) == name) mask |= uint32_t{1} << i;
  }
  if (mask == 0) return std::nullopt;
  return mask;
}

constexpr uint32_t kAllCategories = (uint32_t{1} << 29) - 1;
constexpr uint32_t kDecimal = uint32_t{1} << static_cast<int>(Category::kNd);

}  // namespace

class PatternCompiler {
 public:
  PatternCompiler(std::string_view regex, std::string where)
      : regex_(regex), where_(std::move(where)) {}

  absl::StatusOr<Pattern> Compile() {
    if (!IsUtf8(regex_))
      return absl::InvalidArgumentError(absl::StrCat(where_, ": pattern: expected UTF-8"));
    Alternatives(0, false);
    if (status_.ok() && at_ < regex_.size()) Unsupported("unmatched )");
    QT_RETURN_IF_ERROR(status_);
    Emit({Pattern::Step::kMatch});
    QT_RETURN_IF_ERROR(status_);
    MarkFinalLoops();
    uint32_t splits = 0;
    for (Step& step : steps()) {
      if (step.kind == Step::kSplit) step.number = splits++;
    }
    for (CharacterClass& c : pattern_.classes_) c.FillAscii();
    return std::move(pattern_);
  }

 private:
  using Step = Pattern::Step;
  std::vector<Step>& steps() { return pattern_.steps_; }
  uint32_t here() const { return static_cast<uint32_t>(pattern_.steps_.size()); }
  bool HasMore() const { return status_.ok() && at_ < regex_.size(); }
  char Peek() const { return regex_[at_]; }
  bool Accept(std::string_view text) {
    if (!HasMore() || regex_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void Unsupported(std::string_view what) {
    if (!status_.ok()) return;
    status_ = absl::UnimplementedError(absl::StrCat(where_, ": pattern \"",
                                                    std::string(regex_.substr(0, 200)), "\", byte ",
                                                    at_, ": unsupported: ", std::string(what)));
  }
  void Emit(Step step) {
    if (steps().size() >= kMaxPatternSteps) {
      Unsupported(absl::StrCat("more than ", kMaxPatternSteps, " steps"));
    }
    steps().push_back(step);
  }
  uint32_t AddClass(CharacterClass c) {
    pattern_.classes_.push_back(std::move(c));
    return static_cast<uint32_t>(pattern_.classes_.size() - 1);
  }

  // Finds loops over a single character class after which the pattern ends. Such a loop consists of
  // three steps: a split (enter the loop body or leave), the class, a jump back to the split. The
  // split is replaced by kFinalLoop, which matches the whole loop.
  void MarkFinalLoops() {
    for (size_t i = 0; i + 3 < steps().size(); ++i) {
      const Step split = steps()[i], body = steps()[i + 1], jump = steps()[i + 2];
      if (split.kind != Step::kSplit || split.first != i + 1 || split.second != i + 3) continue;
      if (body.kind != Step::kClass || jump.kind != Step::kJump || jump.first != i) continue;
      size_t behind = i + 3;
      // In a|b a forward jump at the end of alternative a skips alternative b. Follow such jumps to
      // the step that runs next.
      while (steps()[behind].kind == Step::kJump && steps()[behind].first > behind)
        behind = steps()[behind].first;
      if (steps()[behind].kind == Step::kMatch) steps()[i] = {Step::kFinalLoop, body.first};
    }
  }

  // Compiles alternatives. split(x, y) is a step that tries to continue at x and, if that fails, at
  // y. a|b|c becomes split(a, second split), a, jump(end), split(b, c), b, jump(end), c.
  void Alternatives(int depth, bool ignore_case) {
    if (depth > kMaxDepth) return Unsupported("groups nested deeper than 16");
    const uint32_t start = here();
    Sequence(depth, ignore_case);
    if (!HasMore() || Peek() != '|') return;
    std::vector<uint32_t> jumps;
    uint32_t branch = start;
    while (Accept("|")) {
      Insert(branch, {Step::kSplit});
      jumps.push_back(here());
      Emit({Step::kJump});
      steps()[branch].first = branch + 1;
      steps()[branch].second = here();
      branch = here();
      Sequence(depth, ignore_case);
    }
    for (const uint32_t jump : jumps) steps()[jump].first = here();
  }

  // Inserts a step at index `place`, which moves the later steps by one. In the splits and jumps
  // among the later steps, increases each target that is >= `place` by 1.
  void Insert(uint32_t place, Step step) {
    Emit({Step::kMatch});
    std::rotate(steps().begin() + place, steps().end() - 1, steps().end());
    steps()[place] = step;
    for (size_t i = place + 1; i < steps().size(); ++i) {
      if (steps()[i].kind == Step::kSplit || steps()[i].kind == Step::kJump) {
        steps()[i].first += steps()[i].first >= place;
        steps()[i].second += steps()[i].second >= place;
      }
    }
  }

  void Sequence(int depth, bool ignore_case) {
    while (HasMore() && Peek() != '|' && Peek() != ')') {
      const uint32_t start = here();
      Atom(depth, ignore_case);
      if (status_.ok()) Quantifier(start);
    }
  }

  void Atom(int depth, bool ignore_case) {
    if (Accept("(?=")) return LookAhead(Step::kLookAhead, ignore_case);
    if (Accept("(?!")) return LookAhead(Step::kNegativeLookAhead, ignore_case);
    if (Accept("(?i:")) return Group(depth, true);
    if (Accept("(?:")) return Group(depth, ignore_case);
    if (regex_.substr(at_, 2) == "(?") return Unsupported("this kind of group");
    if (Accept("(")) return Group(depth, ignore_case);
    if (Accept("^")) return Emit({Step::kLineStart});
    if (Accept("$")) return Emit({Step::kLineEnd});
    if (Accept("\\A")) return Emit({Step::kTextStart});
    if (Accept("\\z")) return Emit({Step::kTextEnd});
    if (Peek() == '*' || Peek() == '+' || Peek() == '?')
      return Unsupported("quantifier without an atom");
    Emit({Step::kClass, AddClass(SingleClass(ignore_case))});
  }

  void Group(int depth, bool ignore_case) {
    Alternatives(depth + 1, ignore_case);
    if (!Accept(")")) Unsupported("group without )");
  }

  void LookAhead(Step::Kind kind, bool ignore_case) {
    if (!HasMore() || Peek() == '(' || Peek() == ')')
      return Unsupported("look-ahead over other than one character");
    CharacterClass c = SingleClass(ignore_case);
    if (!Accept(")")) return Unsupported("look-ahead over other than one character");
    Emit({kind, AddClass(std::move(c))});
  }

  std::optional<uint32_t> Number() {
    if (!HasMore() || Peek() < '0' || Peek() > '9') return std::nullopt;
    uint32_t value = 0;
    while (HasMore() && Peek() >= '0' && Peek() <= '9') {
      value = std::min<uint32_t>(value * 10 + static_cast<uint32_t>(Peek() - '0'), kMaxRepeat + 1);
      ++at_;
    }
    return value;
  }

  void Quantifier(uint32_t start) {
    uint32_t low, high;  // high == 0: no limit
    if (Accept("*")) {
      low = high = 0;
    } else if (Accept("+")) {
      low = 1, high = 0;
    } else if (Accept("?")) {
      low = 0, high = 1;
    } else if (Accept("{")) {
      const std::optional<uint32_t> first = Number();
      if (!first) return Unsupported("{ that is not a quantifier; write \\{");
      low = high = *first;
      if (Accept(",")) high = Number().value_or(0);
      if (!Accept("}") || low > kMaxRepeat || high > kMaxRepeat || (high != 0 && high < low) ||
          (low == 0 && high == 0)) {
        return Unsupported("this repetition count");
      }
    } else {
      return;
    }
    if (HasMore() && (Peek() == '?' || Peek() == '+' || Peek() == '*' || Peek() == '{')) {
      return Unsupported("lazy, possessive or doubled quantifier");
    }
    Repeat(start, low, high);
  }

  // Compiles a repetition of the atom (character, class or group) whose steps are [start, here()):
  // replaces these steps by steps that match the atom `low` to `high` times. high == 0: no upper
  // limit.
  void Repeat(uint32_t start, uint32_t low, uint32_t high) {
    const std::vector<Step> atom(steps().begin() + start, steps().end());
    steps().resize(start);
    const auto append = [&] {
      const uint32_t shift = here() - start;
      for (Step step : atom) {
        if (step.kind == Step::kSplit || step.kind == Step::kJump)
          step.first += shift, step.second += shift;
        Emit(step);
      }
    };
    for (uint32_t i = 0; i < low && status_.ok(); ++i) append();
    if (high == 0) {
      const uint32_t loop = here();
      Emit({Step::kSplit, loop + 1});
      append();
      Emit({Step::kJump, loop});
      steps()[loop].second = here();
      return;
    }
    std::vector<uint32_t> exits;
    for (uint32_t i = low; i < high && status_.ok(); ++i) {
      exits.push_back(here());
      Emit({Step::kSplit, here() + 1});
      append();
    }
    for (const uint32_t exit : exits) steps()[exit].second = here();
  }

  CharacterClass SingleClass(bool ignore_case) {
    CharacterClass c;
    if (Accept(".")) {
      c.ranges.push_back({'\n', '\n'});
      c.negated = true;
    } else if (Accept("[")) {
      Bracket(&c, ignore_case);
    } else {
      Member(&c, ignore_case, nullptr);
    }
    return c;
  }

  void Bracket(CharacterClass* c, bool ignore_case) {
    c->negated = Accept("^");
    if (HasMore() && Peek() == ']') return Unsupported("] as the first of a class");
    while (HasMore() && Peek() != ']') {
      if (Peek() == '[' || regex_.substr(at_, 2) == "&&") return Unsupported("nested class");
      std::optional<uint32_t> low;
      Member(c, ignore_case, &low);
      if (!HasMore() || Peek() != '-' || regex_.substr(at_, 2) == "-]") continue;
      ++at_;
      std::optional<uint32_t> high;
      if (!low || ignore_case) return Unsupported("this range");
      CharacterClass unused;
      if (HasMore()) Member(&unused, false, &high);
      if (!high || *high < *low) return Unsupported("this range");
      c->ranges.push_back({*low, *high});
    }
    if (!Accept("]")) Unsupported("class without ]");
  }

  // Parses one literal or escape and adds it to class *c. Sets *literal if the literal or escape
  // stands for a single code point.
  void Member(CharacterClass* c, bool ignore_case, std::optional<uint32_t>* literal) {
    if (!HasMore()) return Unsupported("unexpected end of the pattern");
    int length;
    uint32_t code_point = DecodeUtf8(regex_.data() + at_, &length);
    at_ += static_cast<size_t>(length);
    if (code_point == '\\') {
      if (!HasMore()) return Unsupported("\\ at the end");
      const char escape = regex_[at_++];
      if (EscapedClass(escape, c)) return;
      const std::optional<uint32_t> plain = EscapedLiteral(escape);
      if (!plain) return Unsupported("this escape");
      code_point = *plain;
    }
    if (literal != nullptr) *literal = code_point;
    AddLiteral(code_point, ignore_case, c);
  }

  void AddLiteral(uint32_t code_point, bool ignore_case, CharacterClass* c) {
    c->ranges.push_back({code_point, code_point});
    if (!ignore_case) return;
    if (code_point >= 128) return Unsupported("case-insensitive letters beyond ASCII");
    const uint32_t lower = code_point | 0x20;
    if (lower < 'a' || lower > 'z') return;
    c->ranges.push_back({lower, lower});
    c->ranges.push_back({lower - 32, lower - 32});
    if (lower == 's') c->ranges.push_back({0x17F, 0x17F});    // long s
    if (lower == 'k') c->ranges.push_back({0x212A, 0x212A});  // Kelvin sign
  }

  bool EscapedClass(char escape, CharacterClass* c) {
    switch (escape) {
      case 's':
        c->white_space = true;
        return true;
      case 'S':
        c->not_white_space = true;
        return true;
      case 'w':
        c->word = true;
        return true;
      case 'W':
        c->not_word = true;
        return true;
      case 'd':
        c->categories |= kDecimal;
        return true;
      case 'D':
        c->categories |= kAllCategories & ~kDecimal;
        return true;
      case 'p':
      case 'P':
        Property(escape == 'P', c);
        return true;
      default:
        return false;
    }
  }

  void Property(bool negated, CharacterClass* c) {
    if (!Accept("{")) return Unsupported("property without {");
    if (Accept("^")) negated = !negated;
    const size_t close = regex_.find('}', at_);
    if (close == std::string_view::npos) return Unsupported("property without }");
    const std::optional<uint32_t> mask = CategoryMask(regex_.substr(at_, close - at_));
    if (!mask) return Unsupported("this property; only general categories are supported");
    at_ = close + 1;
    c->categories |= negated ? kAllCategories & ~*mask : *mask;
  }

  static std::optional<uint32_t> EscapedLiteral(char escape) {
    switch (escape) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      default:
        break;
    }
    const bool alphanumeric = (escape >= '0' && escape <= '9') ||
                              (escape >= 'a' && escape <= 'z') || (escape >= 'A' && escape <= 'Z');
    if (alphanumeric || static_cast<uint8_t>(escape) >= 128) return std::nullopt;
    return static_cast<uint32_t>(escape);
  }

  std::string_view regex_;
  std::string where_;
  size_t at_ = 0;
  absl::Status status_;
  Pattern pattern_;
};

absl::StatusOr<Pattern> Pattern::Compile(std::string_view regex, const std::string& where) {
  return PatternCompiler(regex, where).Compile();
}

}  // namespace quintet
