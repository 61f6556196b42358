#include "server/otlp_json.h"

#include <vector>

#include "nlohmann/json.hpp"
#include "tests/catch.h"

namespace quintet {
namespace {

using nlohmann::json;

TEST_CASE("Spans have the JSON encoding of OTLP", "[trace]") {
  Span span;
  span.context.trace_id.fill(0xab);
  span.context.span_id.fill(0x01);
  span.context.flags = 1;
  span.context.state = "a=b";
  span.parent.fill(0x02);
  span.remote_parent = true;
  span.kind = SpanKind::kServer;
  span.name = "quintet.v1.Inference/Generate";
  span.start_us = 1'700'000'000'000'001;
  span.end_us = 1'700'000'000'000'005;
  span.attributes = {{"text", std::string("x\xff")},
                     {"number", int64_t{1} << 62},
                     {"ratio", 0.5},
                     {"list", std::vector<std::string>{"a", "b"}}};
  Span failed;
  failed.context.trace_id.fill(0xab);
  failed.context.span_id.fill(0x03);
  failed.name = "queue";
  failed.start_us = 5;
  failed.end_us = 4;  // the clock went back
  failed.failed = true;
  failed.failure = "QUEUED";
  const std::vector<Span> spans = {span, failed};
  const json request = json::parse(OtlpRequest({{"service.name", "quintet"}}, spans));
  REQUIRE(request["resourceSpans"].size() == 1);
  const json& resource = request["resourceSpans"][0];
  CHECK(resource["resource"]["attributes"] ==
        json::parse(R"([{"key":"service.name","value":{"stringValue":"quintet"}}])"));
  CHECK(resource["scopeSpans"][0]["scope"]["name"] == "quintet");
  CHECK(resource["scopeSpans"][0]["spans"] == json::parse(R"([
    {"traceId": "abababababababababababababababab", "spanId": "0101010101010101",
     "traceState": "a=b", "parentSpanId": "0202020202020202", "flags": 769,
     "name": "quintet.v1.Inference/Generate", "kind": 2,
     "startTimeUnixNano": "1700000000000001000", "endTimeUnixNano": "1700000000000005000",
     "attributes": [{"key": "text", "value": {"stringValue": "x\ufffd"}},
                    {"key": "number", "value": {"intValue": "4611686018427387904"}},
                    {"key": "ratio", "value": {"doubleValue": 0.5}},
                    {"key": "list", "value": {"arrayValue": {"values": [
                        {"stringValue": "a"}, {"stringValue": "b"}]}}}]},
    {"traceId": "abababababababababababababababab", "spanId": "0303030303030303", "flags": 0,
     "name": "queue", "kind": 1, "startTimeUnixNano": "5000", "endTimeUnixNano": "5000",
     "status": {"code": 2, "message": "QUEUED"}}])"));
}

TEST_CASE("Rejected spans are read from the response of the collector, whatever it holds",
          "[trace]") {
  CHECK(OtlpRejectedSpans(R"({"partialSuccess":{"rejectedSpans":"7","errorMessage":"x"}})") == 7);
  CHECK(OtlpRejectedSpans(R"({"partialSuccess":{"rejectedSpans":7}})") == 7);
  for (const char* none :
       {"", "{}", "[]", "null", "{", R"({"partialSuccess":{}})", R"({"partialSuccess":[]})",
        R"({"partialSuccess":{"rejectedSpans":"-7"}})",
        R"({"partialSuccess":{"rejectedSpans":-7}})", R"({"partialSuccess":{"rejectedSpans":"x"}})",
        R"({"partialSuccess":{"rejectedSpans":[]}})",
        R"({"partialSuccess":{"rejectedSpans":1e300}})"}) {
    INFO(none);
    CHECK(OtlpRejectedSpans(none) == 0);
  }
}

}  // namespace
}  // namespace quintet
