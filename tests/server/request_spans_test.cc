#include "server/request_spans.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/collector.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

using Attributes = std::map<std::string, std::string>;

std::string TextOf(const SpanAttribute& attribute) {
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          std::string all;
          for (const std::string& one : value) absl::StrAppend(&all, all.empty() ? "" : ",", one);
          return all;
        } else {
          return absl::StrCat(value);
        }
      },
      attribute.value);
}

Attributes AttributesOf(const Span& span) {
  Attributes found;
  for (const SpanAttribute& attribute : span.attributes) {
    CHECK(found.emplace(attribute.key, TextOf(attribute)).second);
  }
  return found;
}

// Names and times of spans, relative to `epoch_us`.
std::vector<std::string> Timeline(const std::vector<Span>& spans, int64_t epoch_us) {
  std::vector<std::string> lines;
  for (const Span& span : spans) {
    lines.push_back(
        absl::StrCat(span.name, " ", span.start_us - epoch_us, "-", span.end_us - epoch_us));
  }
  return lines;
}

using Lines = std::vector<std::string>;
constexpr int64_t kEpochUs = 1'700'000'000'000'000;

StartedSpan Started() {
  StartedSpan span;
  span.context.trace_id.fill(1);
  span.context.span_id.fill(2);
  span.context.flags = 1;
  span.context.state = "a=b";
  span.parent.fill(3);
  span.remote_parent = true;
  span.recorded = true;
  return span;
}

TEST_CASE("A generation has a span for the call and one for each phase", "[trace]") {
  const StartedSpan span = Started();
  Request request;
  request.decoding.max_new_tokens = 40;
  request.decoding.num_return_sequences = 2;
  request.decoding.do_sample = true;
  request.decoding.warp.temperature = 0.5f;
  request.decoding.warp.top_k = 7;
  Result result;
  result.sequences.resize(2);
  result.sequences[1].finish_reason = FinishReason::kLength;
  result.timing = {.queue_us = 10, .encode_us = 20, .first_token_us = 35, .total_us = 90};
  EngineTrace engine;
  engine.SetRequests({&request, 1});
  engine.SetResults({&result, 1});
  EndedCall call{.span = span, .path = "/quintet.v1.Inference/Generate"};
  call.record = {.request_id = "q1",
                 .model = "g2p",
                 .method = "Generate",
                 .input_tokens = 5,
                 .output_tokens = 6};
  call.engine = &engine;
  call.arrival_us = 1000;
  call.tokenized_us = 1007;
  call.started_us = 1017;
  call.end_us = 1100;
  call.submitted = true;
  const std::vector<Span> spans = CallSpans(call, kEpochUs);
  CHECK(Timeline(spans, kEpochUs) ==
        Lines{"quintet.v1.Inference/Generate 1000-1100", "tokenize 1000-1007", "queue 1007-1017",
              "encode 1017-1037", "prefill 1037-1042", "decode 1042-1097"});
  CHECK(spans[0].kind == SpanKind::kServer);
  CHECK(spans[0].context.span_id == span.context.span_id);
  CHECK(spans[0].parent == span.parent);
  CHECK(spans[0].remote_parent);
  CHECK_FALSE(spans[0].failed);
  for (size_t i = 1; i < spans.size(); ++i) {
    CHECK(spans[i].kind == SpanKind::kInternal);
    CHECK(spans[i].context.trace_id == span.context.trace_id);
    CHECK(spans[i].context.state == "a=b");
    CHECK(spans[i].parent == span.context.span_id);
    CHECK_FALSE(spans[i].remote_parent);
    CHECK(spans[i].context.span_id != spans[i - 1].context.span_id);
  }
  CHECK(AttributesOf(spans[0]) == Attributes{{"rpc.system", "grpc"},
                                             {"rpc.service", "quintet.v1.Inference"},
                                             {"rpc.method", "Generate"},
                                             {"rpc.grpc.status_code", "0"},
                                             {"gen_ai.operation.name", "text_completion"},
                                             {"gen_ai.provider.name", "quintet"},
                                             {"gen_ai.request.model", "g2p"},
                                             {"gen_ai.response.id", "q1"},
                                             {"gen_ai.request.max_tokens", "40"},
                                             {"gen_ai.request.choice.count", "2"},
                                             {"gen_ai.request.temperature", "0.5"},
                                             {"gen_ai.request.top_p", "1"},
                                             {"gen_ai.request.top_k", "7"},
                                             {"gen_ai.usage.input_tokens", "5"},
                                             {"gen_ai.usage.output_tokens", "6"},
                                             {"gen_ai.response.finish_reasons", "stop,length"}});
}

TEST_CASE("The phases of several requests reach from the first to the last", "[trace]") {
  const StartedSpan span = Started();
  std::vector<Request> requests(2);
  for (Request& request : requests) request.kind = RequestKind::kEncode;
  std::vector<Result> results(2);
  results[0].timing = {.queue_us = 30, .encode_us = 20, .total_us = 52};
  results[1].timing = {.queue_us = 10, .encode_us = 25, .total_us = 36};
  EngineTrace engine;
  engine.SetRequests(requests);
  engine.SetResults(results);
  EndedCall call{.span = span, .path = ""};
  call.record.method = "Encode";
  call.engine = &engine;
  call.tokenized_us = 5;
  call.started_us = 36;
  call.end_us = 60;
  call.submitted = true;
  const std::vector<Span> spans = CallSpans(call, kEpochUs);
  CHECK(Timeline(spans, kEpochUs) ==
        Lines{"Encode 0-60", "tokenize 0-5", "queue 5-35", "encode 15-55"});
  CHECK(spans[0].kind == SpanKind::kInternal);
  const Attributes attributes = AttributesOf(spans[0]);
  CHECK(attributes.at("gen_ai.operation.name") == "embeddings");
  CHECK(attributes.count("rpc.system") == 0);
  CHECK(attributes.count("gen_ai.request.max_tokens") == 0);
}

TEST_CASE("A call that has failed has the phases that it reached, and its reason", "[trace]") {
  const StartedSpan span = Started();
  EngineTrace engine;
  EndedCall call{.span = span, .path = "/quintet.v1.Inference/Score"};
  call.arrival_us = 10;
  call.end_us = 90;
  const auto set = [&](absl::StatusCode code, const char* reason) {
    call.record.code = static_cast<int>(code);
    call.record.reason = reason;
    return CallSpans(call, kEpochUs);
  };
  // Rejected before it was tokenized: an error of the client.
  std::vector<Span> spans = set(absl::StatusCode::kInvalidArgument, "INVALID_FIELD");
  CHECK(spans.size() == 1);
  CHECK_FALSE(spans[0].failed);
  CHECK(AttributesOf(spans[0]).at("quintet.error.reason") == "INVALID_FIELD");
  CHECK(AttributesOf(spans[0]).count("error.type") == 0);
  // In the queue until its deadline.
  call.engine = &engine;
  call.tokenized_us = 20;
  call.submitted = true;
  spans = set(absl::StatusCode::kDeadlineExceeded, "QUEUED");
  CHECK(Timeline(spans, kEpochUs) ==
        Lines{"quintet.v1.Inference/Score 10-90", "tokenize 10-20", "queue 20-90"});
  CHECK(spans[0].failed);
  CHECK(spans[0].failure == "QUEUED");
  CHECK(AttributesOf(spans[0]).at("error.type") == "DEADLINE_EXCEEDED");
  CHECK(AttributesOf(spans[0]).at("rpc.grpc.status_code") == "4");
  // Started, and then failed.
  call.started_us = 50;
  spans = set(absl::StatusCode::kInternal, "ENGINE_FAULT");
  CHECK(Timeline(spans, kEpochUs).back() == "queue 20-50");
  CHECK(spans[0].failed);
  spans = set(absl::StatusCode::kCancelled, "");
  CHECK_FALSE(spans[0].failed);
}

TEST_CASE("A request of the HTTP API has its route and its status", "[trace]") {
  const StartedSpan started = Started();
  EndedHttpRequest request{.span = started, .method = "POST", .route = "/v1/completions"};
  request.status = 503;
  request.arrival_us = 4;
  request.end_us = 9;
  Span span = HttpSpan(request, kEpochUs);
  CHECK(span.name == "POST /v1/completions");
  CHECK(span.kind == SpanKind::kServer);
  CHECK(span.end_us - span.start_us == 5);
  CHECK(span.failed);
  CHECK(AttributesOf(span) == Attributes{{"http.request.method", "POST"},
                                         {"http.route", "/v1/completions"},
                                         {"http.response.status_code", "503"},
                                         {"error.type", "503"}});
  request.status = 429;
  span = HttpSpan(request, kEpochUs);
  CHECK_FALSE(span.failed);
  CHECK(AttributesOf(span).count("error.type") == 0);
  request.status = 0;
  CHECK(AttributesOf(HttpSpan(request, kEpochUs)).count("http.response.status_code") == 0);
}

TEST_CASE("A server exports the spans of its calls, and those in the queue when it stops",
          "[trace]") {
  Collector collector;
  RunningServer server([&](ServerOptions* options) {
    options->tracing.emplace();
    options->tracing->exporter.http.url = collector.url();
    options->tracing->exporter.delay = std::chrono::hours(1);
  });
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  context.AddMetadata("tracestate", "vendor=1");
  v1::GenerateResponse response;
  REQUIRE(server.stub().Generate(&context, Endless(5), &response).ok());
  REQUIRE(Generate(server.stub(), Endless(5)).ok());
  CHECK(server.Metric("quintet_spans_exported_total") == 0);
  CHECK(server.Stop() == 0);
  const std::vector<nlohmann::json> spans = collector.spans();
  REQUIRE(spans.size() == 12);
  CHECK(spans[0]["traceId"] == "0af7651916cd43dd8448eb211c80319c");
  CHECK(spans[0]["parentSpanId"] == "b7ad6b7169203331");
  CHECK(spans[0]["traceState"] == "vendor=1");
  CHECK(spans[6]["traceId"] != spans[0]["traceId"]);
  CHECK(spans[6].count("parentSpanId") == 0);
}

}  // namespace
}  // namespace quintet
