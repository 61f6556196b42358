#include "models/checkpoint/json_string.h"

#include "nlohmann/json.hpp"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("ReadJsonString accepts and returns the same strings as the JSON library",
          "[json_string]") {
  const std::string cases[] = {
      R"("")", R"("plain text")", R"("\"\\\/\b\f\n\r\t")",
      R"("\u0041\u00e9\u20ac\ud83d\ude00\u0000")", "\"h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80\"",
      "\"\x7f\"", "\"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80\"",
      // Strings that must be rejected: no quotes, no end, control characters, bad escapes, lone
      // surrogates, bad UTF-8.
      "", "x", "\"", "\"a", "\"\\", "\"\\\"", "\"\n\"", std::string("\"\0\"", 3), R"("\x")",
      R"("\u12")", R"("\u12g4")", R"("\ud83d")", R"("\ud83d\n")", R"("\ud83dxx")",
      R"("\ud83d\u0041")", R"("\ude00")", "\"\x80\"", "\"\xc0\x80\"", "\"\xc1\xbf\"",
      "\"\xe0\x80\x80\"", "\"\xed\xa0\x80\"", "\"\xf0\x80\x80\x80\"", "\"\xf4\x90\x80\x80\"",
      "\"\xf5\x80\x80\x80\"", "\"\xe2\x82\"", "\"\xe2\x82", "\"\xff\""};
  for (const std::string& text : cases) {
    INFO(text);
    size_t at = 0;
    std::string value;
    const auto expected = nlohmann::json::parse(text, nullptr, false);
    const bool valid = ReadJsonString(text, &at, &value);
    REQUIRE(valid == expected.is_string());
    CHECK(at <= text.size());
    if (!valid) continue;
    CHECK(value == expected.get<std::string>());
    CHECK(at == text.size());
  }
}

TEST_CASE("Reading starts at the given position and stops after the string", "[json_string]") {
  const std::string text = R"(x"ab","c")";
  size_t at = 1;
  std::string value = "old";
  REQUIRE(ReadJsonString(text, &at, &value));
  CHECK(value == "ab");
  CHECK(at == 5);
  CHECK(!ReadJsonString(text, &at, &value));
  at = 6;
  REQUIRE(ReadJsonString(text, &at, &value));
  CHECK(value == "c");
}

}  // namespace
}  // namespace quintet
