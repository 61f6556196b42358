#include "models/tokenizers/pattern.h"

#include <string>
#include <vector>

#include "models/tokenizers/byte_level.h"
#include "tests/catch.h"

namespace quintet {
namespace {

std::vector<std::string> Matches(std::string_view regex, std::string_view text) {
  auto pattern = Pattern::Compile(regex, "test");
  INFO(pattern.status());
  REQUIRE(pattern.ok());
  std::vector<std::string> matches;
  pattern->ForEachMatch(text, [&](size_t begin, size_t end) {
    matches.emplace_back(text.substr(begin, end - begin));
  });
  return matches;
}

using Strings = std::vector<std::string>;

TEST_CASE("Patterns match leftmost, try alternatives in order and are greedy", "[pattern]") {
  CHECK(Matches("a|ab", "ab") == Strings{"a"});
  CHECK(Matches("ab|a", "abaa") == Strings{"ab", "a", "a"});
  CHECK(Matches("a+b", "aaab ab b") == Strings{"aaab", "ab"});
  CHECK(Matches("a*ab", "aaab") == Strings{"aaab"});
  CHECK(Matches("(?:ab|c)+d?", "ababcd abx c") == Strings{"ababcd", "ab", "c"});
  CHECK(Matches("x{2,3}", "x xx xxx xxxx") == Strings{"xx", "xxx", "xxx"});
  CHECK(Matches(" {2,}", "a  b   c d") == Strings{"  ", "   "});
  CHECK(Matches("[^a-c\\s]+", "abd ef") == Strings{"d", "ef"});
  CHECK(Matches("(?i:'ll|'s)", "'LL 's '\u017F 'x") == Strings{"'LL", "'s", "'\u017F"});
  CHECK(Matches("\\s+(?!\\S)|\\s+", "a   b  ") == Strings{"  ", " ", "  "});
  CHECK(Matches("a(?=b)", "ab ac ab") == Strings{"a", "a"});
  CHECK(Matches("^a|b$", "a b\na b") == Strings{"a", "b", "a", "b"});
  CHECK(Matches("\\p{Lu}\\P{L}", "A1 b2 \u00C93") == Strings{"A1", "\u00C93"});
  CHECK(Matches(".", "a\n\u00E9") == Strings{"a", "\u00E9"});
  CHECK(Matches("a*", "baa") == Strings{"", "aa"});
  CHECK(Matches(kGpt2Pattern, "I'm  at 42!\n") == Strings{"I", "'m", " ", " at", " 42", "!", "\n"});
}

TEST_CASE("Errors for unsupported patterns quote the pattern and the file", "[pattern]") {
  using Catch::Matchers::ContainsSubstring;
  for (const char* regex : {"a*?", "a++", "(?<=a)b", "(?!ab)c", "\\bword", "\\1", "[[:alpha:]]",
                            "[a&&b]", "a{2}{3}", "\\p{Greek}", "(?<n>a)"}) {
    CAPTURE(regex);
    const auto status = Pattern::Compile(regex, "f.json").status();
    CHECK(status.code() == absl::StatusCode::kUnimplemented);
    CHECK_THAT(std::string(status.message()),
               ContainsSubstring(regex) && ContainsSubstring("f.json"));
  }
  for (const std::string& regex :
       {std::string("("), std::string("a)"), std::string("[a"), std::string("*a"),
        std::string("a|*"), std::string("\\"), std::string("\\p{"), std::string("a{101}"),
        std::string("a{2,1}"), std::string("[z-a]"), std::string("(?:"), std::string(100000, '('),
        std::string(1000, 'a'), std::string("((a{100}){100}){100}"), std::string("\xFF")}) {
    CAPTURE(regex.substr(0, 40));
    CHECK_FALSE(Pattern::Compile(regex, "f.json").ok());
  }
}

TEST_CASE("Literals of any length match leftmost and do not overlap", "[pattern]") {
  // One function finds literals of up to 16 bytes, another one finds longer literals.
  for (const size_t size : {1, 2, 16, 17, 18, 300, 5000}) {
    CAPTURE(size);
    const std::string literal = std::string(size - 1, 'a') + "b";
    const std::string text = std::string(7, 'a') + literal + literal + std::string(size, 'a') +
                             "c" + literal + literal.substr(0, size - 1);
    std::vector<size_t> expected, begins;
    for (size_t at = text.find(literal); at != std::string::npos;
         at = text.find(literal, at + size))
      expected.push_back(at);
    REQUIRE(expected.size() == 3);
    Pattern::Literal(literal).ForEachMatch(text, [&](size_t begin, size_t end) {
      CHECK(end == begin + size);
      begins.push_back(begin);
    });
    CHECK(begins == expected);
  }
}

TEST_CASE("Nested repetition takes linear time", "[pattern]") {
  // Each of these patterns takes exponential or cubic time in a backtracking engine, so this test
  // would not finish there.
  const std::string as(20000, 'a');
  CHECK(Matches("(?:a*)*b", as).empty());
  CHECK(Matches("(?:a|a)*b", as).empty());
  CHECK(Matches("a*a*a*a*b", as).empty());
  CHECK(Matches("(?:(?:a?){50}a{50})b", as).empty());
}

}  // namespace
}  // namespace quintet
