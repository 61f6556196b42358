#include "models/checkpoint/json.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

TEST_CASE("ParseJson returns the values of the text", "[json]") {
  auto json =
      ParseJson(R"( {"a": [1, -2, 2.5, true, null, {"b": []}], "c": {"a": "x"}} )", "f.json");
  REQUIRE(json.ok());
  CHECK(*json == nlohmann::json::parse(R"({"a":[1,-2,2.5,true,null,{"b":[]}],"c":{"a":"x"}})"));
  CHECK(*ParseJson("7", "f.json") == 7);
  CHECK(ParseJson("\xEF\xBB\xBF{}", "f.json")->is_object());
}

TEST_CASE("ParseJson rejects damaged text and names the position", "[json]") {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "not JSON at byte 1"},
      {"{", "not JSON at byte 2"},
      {"{} {}", "not JSON"},
      {R"({"a":1,"b":{"x":1,"x":2}})", "key \"x\" twice"},
      {R"({"a":1,"\u0061":2})", "key \"a\" twice"},
      {"[1e999]", "number overflow"},
      {"[NaN]", "not JSON"},
      {"[\"\xFF\"]", "UTF-8"},
      {"[\"\xED\xA0\x80\"]", "UTF-8"},
      {R"(["\ud800"])", "surrogate"},
      {std::string("{}\0", 3), "not JSON"},
      {std::string(100000, '['), "nesting deeper than 32"},
      {std::string(33, '[') + std::string(33, ']'), "nesting deeper than 32"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.text.substr(0, 60));
    auto json = ParseJson(test.text, "f.json");
    REQUIRE(json.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(json.status().message()),
               StartsWith("f.json: ") && ContainsSubstring(test.message));
  }
  CHECK(ParseJson(std::string(32, '[') + std::string(32, ']'), "f.json").ok());
}

TEST_CASE("ReadFile rejects files above its size limit", "[json]") {
  std::string path = "/tmp/quintet_json_test_XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path, std::ios::binary) << "{\"a\": 1}";
  CHECK(ReadFile(path, 8).value() == "{\"a\": 1}");
  CHECK((*ReadJsonFile(path, 8))["a"] == 1);
  CHECK_THAT(std::string(ReadFile(path, 7).status().message()),
             ContainsSubstring("at most 7 bytes, got 8"));
  std::remove(path.c_str());
  CHECK(ReadFile(path, 8).status().code() == absl::StatusCode::kNotFound);
  CHECK(ReadFile("/", 8).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quintet
