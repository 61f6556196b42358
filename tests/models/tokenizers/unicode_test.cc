#include "models/tokenizers/unicode.h"

#include <string>
#include <vector>

#include "models/tokenizers/normalizer.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("UTF-8 validity follows the table of the Unicode standard", "[unicode]") {
  CHECK(Utf8Length("a") == 1);
  CHECK(Utf8Length("\u00E9") == 2);
  CHECK(Utf8Length("\uD7FF") == 3);
  CHECK(Utf8Length("\U0010FFFF") == 4);
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98"}) {
    CHECK(Utf8Length(bad) == 0);
    CHECK_FALSE(IsUtf8(bad));
  }
  for (uint32_t c : {0x24u, 0xA2u, 0x20ACu, 0x10348u}) {
    std::string text;
    AppendUtf8(c, &text);
    int length;
    CHECK(DecodeUtf8(text.data(), &length) == c);
    CHECK(length == static_cast<int>(text.size()));
  }
}

TEST_CASE("Invalid UTF-8 is replaced per maximal part or dropped", "[unicode]") {
  // The first three bytes of a four-byte sequence, without the fourth, are one invalid part and
  // become one U+FFFD. Each byte of an encoded surrogate is a part of its own: three bytes become
  // three U+FFFD.
  const std::string text = "a\xF0\x9F\x98z\xED\xA0\x80\xFF";
  CHECK(RepairUtf8(text, InvalidUtf8::kPart) == "a\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(RepairUtf8(text, InvalidUtf8::kDrop) == "az");
}

TEST_CASE("GraphemeLength follows UAX 29", "[unicode]") {
  CHECK(GraphemeLength("ab") == 1);
  CHECK(GraphemeLength("a\u0301b") == 3);
  CHECK(GraphemeLength("\r\nx") == 2);
  CHECK(GraphemeLength("\n\u0301") == 1);
  CHECK(GraphemeLength("\U0001F468\u200D\U0001F469x") == 11);
  CHECK(GraphemeLength("\U0001F1EB\U0001F1F7\U0001F1EB\U0001F1F7") == 8);
  CHECK(GraphemeLength("\u1100\u1161\u11A8\u1100") == 9);
  CHECK(GraphemeLength("\u0915\u094D\u0937a") == 9);
}

TEST_CASE("Unicode normalization forms", "[unicode]") {
  const auto apply = [](UnicodeForm form, const std::string& text) {
    AlignedText aligned(text, 0, true);
    CHECK(MakeUnicodeForm(form)->Apply(&aligned).ok());
    CHECK(aligned.begin.size() == aligned.text.size());
    return aligned.text;
  };
  CHECK(apply(UnicodeForm::kNfc, "e\u0301") == "\u00E9");
  CHECK(apply(UnicodeForm::kNfd, "\u00E9") == "e\u0301");
  CHECK(apply(UnicodeForm::kNfkc, "\uFB01\u2460") == "fi1");
  CHECK(apply(UnicodeForm::kNfkd, "\u33A1") == "m2");
  CHECK(apply(UnicodeForm::kNfd, "a\u0315\u0300\u05AE") == "a\u05AE\u0300\u0315");
  CHECK(apply(UnicodeForm::kNfc, "\u1100\u1161\u11A8") == "\uAC01");
  CHECK(apply(UnicodeForm::kNfd, "\uAC01") == "\u1100\u1161\u11A8");
  CHECK(apply(UnicodeForm::kNfc, "\u0344") == "\u0308\u0301");
  CHECK(apply(UnicodeForm::kNfc, "a\u0323\u0302") == "\u1EAD");
}

}  // namespace
}  // namespace quintet
