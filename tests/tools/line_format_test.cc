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

TEST_CASE("id and meta of a JSON line are carried byte for byte") {
  CHECK(CarriedFields(R"({"id":123456789012345678901234,"text":"a"})") ==
        R"(,"id":123456789012345678901234)");
  CHECK(CarriedFields(R"( { "text" : "a", "meta" : [1.10, {"}": "\\\""}] , "id" : 1e40 } )") ==
        R"(,"id":1e40,"meta":[1.10, {"}": "\\\""}])");
  CHECK(CarriedFields(R"({"i\u0064":18446744073709551616,"x":{"id":1}})") ==
        R"(,"id":18446744073709551616)");
  CHECK(CarriedFields(R"({"id":1,"id":2})") == R"(,"id":2)");
  CHECK(CarriedFields(R"({"text":"id"})").empty());
  CHECK(CarriedFields(R"({"id":)").empty());
  CHECK(CarriedFields(R"(["id"])").empty());
  CHECK(CarriedFields("{}").empty());
  CHECK(WithFields("{\"line\":1}\n", R"(,"id":1.0)") == "{\"line\":1,\"id\":1.0}\n");
}

}  // namespace
}  // namespace quintet
