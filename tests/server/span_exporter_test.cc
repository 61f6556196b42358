#include "server/span_exporter.h"

#include <atomic>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/collector.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

using std::chrono::milliseconds;

SpanExporter::Options OptionsOf(const HttpUrl& url) {
  SpanExporter::Options options;
  options.http.url = url;
  options.delay = milliseconds(1);
  return options;
}

std::unique_ptr<SpanExporter> StartExporter(SpanExporter::Options options) {
  auto exporter = SpanExporter::Start(std::move(options));
  REQUIRE(exporter.ok());
  return *std::move(exporter);
}

std::vector<Span> Spans(size_t count, const std::string& name = "span") {
  std::vector<Span> spans(count);
  for (Span& span : spans) {
    span.context.trace_id.fill(1);
    span.context.span_id.fill(2);
    span.name = name;
  }
  return spans;
}

HttpUrl ClosedPort() { return {false, "127.0.0.1", std::to_string(FreePort()), "/v1/traces"}; }

TEST_CASE("Spans reach the collector, with headers and the resource", "[trace]") {
  Collector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.http.headers = {{"x-tenant", "seven"}};
  options.resource = {{"service.name", "test"}};
  const auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(3));
  REQUIRE(Eventually([&] { return exporter->exported() == 3; }));
  const std::vector<HttpRequest> requests = collector.requests();
  REQUIRE(requests.size() == 1);
  CHECK(requests[0].Header("content-type") == "application/json");
  CHECK(requests[0].Header("x-tenant") == "seven");
  CHECK_FALSE(requests[0].Header("content-encoding").has_value());
  CHECK(requests[0].Header("host") == collector.url().HostField());
  CHECK(requests[0].body.find("service.name") != std::string::npos);
  CHECK(collector.spans().size() == 3);
  CHECK(exporter->dropped_not_accepted() + exporter->dropped_queue_full() == 0);
}

TEST_CASE("A compressed request is gzip and smaller", "[trace]") {
  Collector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.gzip = true;
  const auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(500));
  REQUIRE(Eventually([&] { return exporter->exported() == 500; }));
  for (const HttpRequest& request : collector.requests()) {
    CHECK(request.Header("content-encoding") == "gzip");
    CHECK(request.body.substr(0, 3) == "\x1f\x8b\x08");
    CHECK(request.body.size() < OtlpRequest({}, Spans(500)).size() / 5);
  }
}

TEST_CASE("A batch is sent when it is full, without waiting for its delay", "[trace]") {
  Collector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.delay = std::chrono::hours(1);
  options.max_batch = 10;
  const auto exporter = StartExporter(std::move(options));
  for (int i = 0; i < 25; ++i) exporter->Add(Spans(1));
  REQUIRE(Eventually([&] { return exporter->exported() == 20; }));
  exporter->Shutdown(std::chrono::seconds(30));  // sends the others
  CHECK(exporter->exported() == 25);
  CHECK(collector.requests().size() == 3);
}

TEST_CASE("A collector that is away gets no spans, which are counted", "[trace]") {
  const auto exporter = StartExporter(OptionsOf(ClosedPort()));
  exporter->Add(Spans(7));
  CHECK(Eventually([&] { return exporter->dropped_not_accepted() == 7; }));
  CHECK(exporter->exported() == 0);
}

TEST_CASE("A collector that is slow fills the queue, and Add does not wait for it", "[trace]") {
  WaitingCollector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.max_queued = 20;
  options.max_batch = 10;
  const auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(10));
  REQUIRE(Eventually([&] { return collector.requests().size() == 1; }));
  exporter->Add(Spans(15));
  exporter->Add(Spans(6));  // has no room, and is dropped as a whole
  CHECK(exporter->dropped_queue_full() == 6);
  exporter->Add(Spans(5));
  CHECK(exporter->dropped_queue_full() == 6);
  collector.Release();
  CHECK(Eventually([&] { return exporter->exported() == 30; }));
  CHECK(exporter->dropped_not_accepted() == 0);
}

TEST_CASE("A request to the collector ends after its timeout", "[trace]") {
  WaitingCollector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.timeout = milliseconds(20);
  const auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(4));
  CHECK(Eventually([&] { return exporter->dropped_not_accepted() == 4; }));
  collector.Release();
}

TEST_CASE("A batch is sent again only if the collector asks for that", "[trace]") {
  for (const int status : {429, 502, 503, 504}) {
    Collector collector([status](size_t number) {
      HttpResponse response = PlainText(number < 2 ? status : 200, "{}");
      response.headers = "Retry-After: 0\r\n";
      return response;
    });
    const auto exporter = StartExporter(OptionsOf(collector.url()));
    exporter->Add(Spans(4));
    CHECK(Eventually([&] { return exporter->exported() == 4; }));
    CHECK(collector.requests().size() == 3);
  }
  for (const int status : {400, 401, 404, 500, 302}) {
    Collector collector([status](size_t) { return PlainText(status, "no"); });
    const auto exporter = StartExporter(OptionsOf(collector.url()));
    exporter->Add(Spans(4));
    CHECK(Eventually([&] { return exporter->dropped_not_accepted() == 4; }));
    CHECK(collector.requests().size() == 1);
  }
  Collector collector([](size_t) { return PlainText(503, "never"); });
  const auto exporter = StartExporter(OptionsOf(collector.url()));
  exporter->Add(Spans(4));
  CHECK(Eventually([&] { return exporter->dropped_not_accepted() == 4; }));
  CHECK(collector.requests().size() == 3);
}

TEST_CASE("Spans that the collector rejects are counted as dropped", "[trace]") {
  Collector collector(
      [](size_t) { return PlainText(200, R"({"partialSuccess":{"rejectedSpans":"3"}})"); });
  const auto exporter = StartExporter(OptionsOf(collector.url()));
  exporter->Add(Spans(4));
  CHECK(Eventually([&] { return exporter->dropped_not_accepted() == 3; }));
  CHECK(exporter->exported() == 1);
}

TEST_CASE("An exporter that stops sends what is queued, and then takes no more", "[trace]") {
  Collector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.delay = std::chrono::hours(1);
  const auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(4));
  exporter->Shutdown(std::chrono::seconds(30));
  CHECK(exporter->exported() == 4);
  exporter->Add(Spans(2));
  CHECK(exporter->dropped_queue_full() == 2);
  exporter->Shutdown(std::chrono::seconds(30));
}

TEST_CASE("An exporter stops although its collector never answers", "[trace]") {
  WaitingCollector collector;
  SpanExporter::Options options = OptionsOf(collector.url());
  options.timeout = std::chrono::hours(1);
  auto exporter = StartExporter(std::move(options));
  exporter->Add(Spans(4));
  REQUIRE(Eventually([&] { return collector.requests().size() == 1; }));
  exporter->Add(Spans(3));
  exporter->Shutdown(milliseconds(10));
  CHECK(exporter->dropped_not_accepted() == 7);
  exporter.reset();
  collector.Release();
}

}  // namespace
}  // namespace quintet
