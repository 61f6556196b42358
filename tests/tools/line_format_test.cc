// Tests of escaping output lines and of parsing input lines.
#include "tools/line_format.h"

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("outputs are escaped to one field of one line") {
  CHECK(EscapeLine("a\tb\nc\rd\\e") == "a\\tb\\nc\\rd\\\\e");
  CHECK(EscapeLine("\\n") == "\\\\n");  // distinct from an escaped newline
  CHECK(EscapeLine("caf\u00E9 \x01") == "caf\u00E9 \x01");
  CHECK(EscapeLine("").empty());
}

TEST_CASE("errors about the ids of a JSON line name the position") {
  const auto message = [](const char* text) {
    return std::string(IdsFromJson(nlohmann::json::parse(text), "token_ids").status().message());
  };
  CHECK(*IdsFromJson(nlohmann::json::parse("[0, 2147483647]"), "token_ids") ==
        std::vector<int32_t>{0, 2147483647});
  CHECK(message("[1, -1]") == "token_ids[1]: expected a token id from 0 to 2147483647, got -1");
  CHECK(message("[2147483648]") ==
        "token_ids[0]: expected a token id from 0 to 2147483647, got 2147483648");
  CHECK(message("[1.5]") == "token_ids[0]: expected a token id from 0 to 2147483647, got 1.5");
  CHECK(message("[\"secret\"]") ==
        "token_ids[0]: expected a token id from 0 to 2147483647, got string");
  CHECK(message("{}") == "token_ids: expected an array of token ids, got object");
}

}  // namespace
}  // namespace quintet
