#include "server/trace_context.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c", kSpanId[] = "b7ad6b7169203331";
const std::string kParent = absl::StrCat("00-", kTraceId, "-", kSpanId, "-01");

TraceContext Parse(const std::vector<std::string>& parents,
                   const std::vector<std::string>& states = {}) {
  const std::vector<absl::string_view> p(parents.begin(), parents.end());
  const std::vector<absl::string_view> s(states.begin(), states.end());
  return ParseTraceContext(p, s);
}

TEST_CASE("A traceparent has the ids and the flags of the caller", "[trace]") {
  const TraceContext context = Parse({kParent});
  CHECK(context.valid());
  CHECK(context.sampled());
  CHECK(HexText(context.trace_id) == kTraceId);
  CHECK(HexText(context.span_id) == kSpanId);
  CHECK(context.state.empty());
  CHECK_FALSE(Parse({absl::StrCat("00-", kTraceId, "-", kSpanId, "-fe")}).sampled());
  CHECK(Parse({absl::StrCat("00-", kTraceId, "-", kSpanId, "-03")}).flags == 3);
  CHECK(Parse({absl::StrCat(" ", kParent, "\t")}).valid());
}

TEST_CASE("A traceparent of a later version may have more fields, one of version 0 may not",
          "[trace]") {
  const std::string rest = kParent.substr(2);
  CHECK(Parse({"cc" + rest}).valid());
  CHECK(Parse({"cc" + rest + "-"}).valid());
  CHECK(Parse({"cc" + rest + "-what-the-future-brings"}).valid());
  CHECK_FALSE(Parse({"cc" + rest + ".what"}).valid());
  CHECK_FALSE(Parse({"00" + rest + "-more"}).valid());
  CHECK_FALSE(Parse({"ff" + rest}).valid());
}

TEST_CASE("A traceparent that does not conform is ignored, with its tracestate", "[trace]") {
  std::vector<std::string> bad = {
      "",
      "-",
      "00",
      std::string(55, '-'),
      std::string(55, '0'),
      std::string(1 << 20, 'a'),
      absl::StrCat("00-", std::string(32, '0'), "-", kSpanId, "-01"),
      absl::StrCat("00-", kTraceId, "-", std::string(16, '0'), "-01"),
      "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",  // upper case
      absl::StrCat("00_", kTraceId, "-", kSpanId, "-01"),
      absl::StrCat("00-", kTraceId, "-", kSpanId, "-0g"),
      absl::StrCat("0-", kTraceId, "-", kSpanId, "-01"),
  };
  for (size_t size = 0; size < kParent.size(); ++size) bad.push_back(kParent.substr(0, size));
  for (size_t at = 0; at < kParent.size(); ++at) {
    for (const char c : {'\0', 'x', '\xff', ' '}) {
      bad.push_back(kParent);
      bad.back()[at] = c;
      // A space at the end is no part of the value, which is then too short.
    }
  }
  for (const std::string& parent : bad) {
    INFO(parent.substr(0, 80));
    const TraceContext context = Parse({parent}, {"a=b"});
    CHECK_FALSE(context.valid());
    CHECK(context.state.empty());
    CHECK_FALSE(context.sampled());
  }
  CHECK_FALSE(Parse({}).valid());
  CHECK_FALSE(Parse({kParent, kParent}).valid());  // several
}

TEST_CASE("A tracestate is passed on without its empty members", "[trace]") {
  const auto state = [](const std::vector<std::string>& states) {
    const TraceContext context = Parse({kParent}, states);
    CHECK(context.valid());  // whatever the tracestate
    return context.state;
  };
  CHECK(state({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}) ==
        "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  CHECK(state({"a=1 , ,b=2,", "c@d_-*/=3"}) == "a=1,b=2,c@d_-*/=3");
  CHECK(state({"a= b"}) == "a= b");
  CHECK(state({""}).empty());
  CHECK(state({"1=2"}) == "1=2");
  std::string many;
  for (int i = 0; i < 32; ++i) absl::StrAppend(&many, i == 0 ? "" : ",", "k", i, "=v");
  CHECK(state({many}) == many);
  CHECK(state({many + ",k32=v"}).empty());
  const std::string value(250, 'v');
  CHECK(state({"a=" + value, "b=" + value}) == absl::StrCat("a=", value, ",b=", value));
  CHECK(state({absl::StrCat("a=", value, ",b=", value, ",c=", value)}).empty());
  for (const char* bad : {"a", "=b", "a=", "a=b,a=c", "A=b", "a b=c", "a=b=c", "a=\x01",
                          "a=\xc3\xa9", "@a=b", "a=1,b", "a =1"}) {
    INFO(bad);
    CHECK(state({bad}).empty());
  }
}

TEST_CASE("Random changes of headers never make a context that does not conform", "[trace]") {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string parent = kParent, state = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";
    for (std::string* text : {&parent, &state}) {
      for (int changes = static_cast<int>(random() % 3); changes > 0; --changes) {
        (*text)[random() % text->size()] = static_cast<char>(random());
      }
    }
    const TraceContext context = Parse({parent}, {state});
    if (!context.valid()) {
      CHECK(context.state.empty());
      continue;
    }
    CHECK(parent.find(HexText(context.trace_id)) != std::string::npos);
    CHECK(parent.find(HexText(context.span_id)) != std::string::npos);
    CHECK(Parse({kParent}, {context.state}).state == context.state);
  }
}

}  // namespace
}  // namespace quintet
