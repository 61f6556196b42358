#include "server/json_value.h"

#include <cmath>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/checkpoint/json.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/server/failing_allocation.h"

namespace quintet {
namespace {

TEST_CASE("Braced lists are objects if every item is a name and a value", "[json]") {
  CHECK(JsonText({{"a", 1}, {"b", "c"}}) == R"({"a":1,"b":"c"})");
  CHECK(JsonText({{"a", {{"b", nullptr}}}}) == R"({"a":{"b":null}})");
  CHECK(JsonText({1, "a"}) == R"([1,"a"])");
  CHECK(JsonText({{"a", 1, 2}, {"b", 2}}) == R"([["a",1,2],["b",2]])");
  CHECK(JsonText(JsonValue::Array({{{"a", 1}}})) == R"([{"a":1}])");
  CHECK(JsonText({{"a", JsonValue::Array()}, {"b", JsonValue::Object()}}) == R"({"a":[],"b":{}})");
}

TEST_CASE("Members keep the order in which they were added", "[json]") {
  JsonValue value;
  value["z"] = 1;
  value["a"]["b"] = std::vector<uint32_t>{3, 4294967295u};
  value["z"] = false;
  CHECK(JsonText(value) == R"({"z":false,"a":{"b":[3,4294967295]}})");
  CHECK(value.size() == 2);
  JsonValue list = JsonValue::Array();
  CHECK(list.empty());
  list.push_back({{"a", "b"}});
  list.push_back(std::move(value));
  CHECK(list.size() == 2);
  CHECK(JsonText(list) == R"([{"a":"b"},{"z":false,"a":{"b":[3,4294967295]}}])");
}

TEST_CASE("Numbers and texts are written as nlohmann::json writes them", "[json]") {
  for (const double number :
       {0.0, -0.0, 1.0, -2.5, 0.1, 1e300, 5e-324, 1e-5, 123456789012.0, static_cast<double>(0.1f),
        std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(JsonText(number) == nlohmann::json(number).dump());
  }
  CHECK(JsonText(std::numeric_limits<int64_t>::min()) == "-9223372036854775808");
  CHECK(JsonText(std::numeric_limits<uint64_t>::max()) == "18446744073709551615");
  for (const std::string text :
       {"", "plain", "\"\\/\b\f\n\r\t\x01", "\xC3\xA4", "\xE2\x80\xA8", "\x7F"}) {
    CHECK(JsonText(text) == nlohmann::json(text).dump());
    CHECK(JsonText({{text, 1}}) == absl::StrCat("{", nlohmann::json(text).dump(), ":1}"));
  }
  CHECK(JsonText("a\xFF") == "\"a\xEF\xBF\xBD\"");
}

// Runs `work` repeatedly; in run n its n-th allocation fails. Ends after a run in which none
// failed.
template <typename Work>
void FailEachAllocation(Work work) {
  bool failed = true;
  for (int64_t skip = 0; failed; ++skip) {
    const int64_t before = FailedAllocations();
    FailAllocations(skip, 1);
    try {
      work();
    } catch (const std::bad_alloc&) {
    }
    FailAllocations(0, 0);
    failed = FailedAllocations() > before;
  }
}

constexpr char kText[] =
    R"({"list":[[1,2,3],["a long text that is on the heap",{"a":[],"b":[[4]]}],[]],)"
    R"("object":{"another long text that is on the heap":[null,true,{"c":{}}]}})";

TEST_CASE("No allocation that fails in parsing, writing or freeing JSON ends the process",
          "[json]") {
  FailEachAllocation(
      [] { const absl::StatusOr<JsonDocument> document = ParseJson(kText, "text"); });
  FailEachAllocation([] {
    // The parser has read most of it when it finds the error.
    const std::string text = std::string(kText, sizeof(kText) - 2) + R"(,"list":1})";
    const absl::StatusOr<JsonDocument> document = ParseJson(text, "text");
  });
  FailEachAllocation([] {
    JsonValue value = {{"name", {{"list", JsonValue::Array({1, {2, 3}})}}}, {"b", "c"}};
    JsonValue list = JsonValue::Array();
    list.push_back({{"c", std::string(100, 'd')}});
    value["more"] = std::move(list);
    JsonText(value);
  });
}

TEST_CASE("Freeing JSON allocates nothing", "[json]") {
  std::optional<JsonDocument> document(*ParseJson(kText, "text"));
  JsonDocument other = *ParseJson("[[1],[2]]", "text");
  std::optional<JsonValue> value(JsonValue{{"name", {1, {2, 3}}}, {"b", {{"c", {4}}}}});
  const int64_t before = FailedAllocations();
  FailAllocations(0, 1'000'000);
  other = std::move(*document);
  other.Clear();
  document.reset();
  value.reset();
  FailAllocations(0, 0);
  CHECK(FailedAllocations() == before);
}

}  // namespace
}  // namespace quintet
