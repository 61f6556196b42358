#include "server/load_reports.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace quintet {
namespace {

using xds::data::orca::v3::OrcaLoadReport;
using xds::service::orca::v3::OpenRcaService;
using xds::service::orca::v3::OrcaLoadReportRequest;

TEST_CASE("A load report has means between two samples and the state of the last one",
          "[load_reports]") {
  const std::vector<ServerLoad> samples = {
      {.time_us = 5'000'000, .cpu_seconds = 3, .ended = 100, .errors = 4, .running = 9},
      {.time_us = 8'000'000, .cpu_seconds = 7, .ended = 110, .errors = 5, .utilization = 1},
      {.time_us = 9'000'000,
       .cpu_seconds = 9,
       .ended = 150,
       .errors = 6,
       .running = 2,
       .waiting = 3,
       .utilization = 2,
       .cache_usage = 0.5,
       .resident_bytes = 300}};
  const OrcaLoadReport report = MakeLoadReport(samples, /*cores=*/2, /*memory_bytes=*/1200);
  CHECK(report.cpu_utilization() == 0.75);
  CHECK(report.mem_utilization() == 0.25);
  CHECK(report.application_utilization() == 1);
  CHECK(report.rps_fractional() == 12.5);
  CHECK(report.eps() == 0.5);
  CHECK(report.named_metrics_size() == 3);
  CHECK(report.named_metrics().at("kv_cache_usage_perc") == 0.5);
  CHECK(report.named_metrics().at("num_requests_running") == 2);
  CHECK(report.named_metrics().at("num_requests_waiting") == 3);
}

TEST_CASE("A report of a single sample has no rates", "[load_reports]") {
  const std::vector<ServerLoad> only = {
      {.time_us = 5, .cpu_seconds = 3, .ended = 7, .errors = 7, .utilization = 0.5}};
  const OrcaLoadReport report = MakeLoadReport(only, 2, 1200);
  CHECK(report.application_utilization() == 0.5);
  CHECK(report.cpu_utilization() == 0);
  CHECK(report.rps_fractional() == 0);
  CHECK(report.eps() == 0);
}

TEST_CASE("A report has no rates below 0 when a model is removed", "[load_reports]") {
  const std::vector<ServerLoad> samples = {{.time_us = 1'000'000, .ended = 100, .errors = 4},
                                           {.time_us = 2'000'000, .ended = 7, .errors = 0}};
  const OrcaLoadReport report = MakeLoadReport(samples, 2, 1200);
  CHECK(report.rps_fractional() == 0);
  CHECK(report.eps() == 0);
}

TEST_CASE("A report has the form that the request asks for", "[load_reports]") {
  OrcaLoadReport report;
  report.set_application_utilization(1.5);
  report.set_cpu_utilization(0.25);
  report.set_rps_fractional(12);
  (*report.mutable_named_metrics())["num_requests_waiting"] = 3;
  (*report.mutable_named_metrics())["kv_cache_usage_perc"] = 0.125;
  for (const char* format : {"text", "TEXT", "Text"}) {
    const auto header = MakeLoadHeader(report, format);
    REQUIRE(header.has_value());
    CHECK(std::string(header->name) == "endpoint-load-metrics");
    CHECK(header->value ==
          "TEXT application_utilization=1.5, cpu_utilization=0.25, mem_utilization=0, "
          "rps_fractional=12, eps=0, named_metrics.kv_cache_usage_perc=0.125, "
          "named_metrics.num_requests_waiting=3");
  }
  const auto json = MakeLoadHeader(report, "JSON");
  REQUIRE(json.has_value());
  CHECK(std::string(json->name) == "endpoint-load-metrics");
  REQUIRE(json->value.substr(0, 5) == "JSON ");
  CHECK(nlohmann::json::parse(json->value.substr(5)) == nlohmann::json::parse(R"(
      {"application_utilization": 1.5, "cpu_utilization": 0.25, "mem_utilization": 0.0,
       "rps_fractional": 12.0, "eps": 0.0,
       "named_metrics": {"kv_cache_usage_perc": 0.125, "num_requests_waiting": 3.0}})"));
  const auto binary = MakeLoadHeader(report, "bin");
  REQUIRE(binary.has_value());
  CHECK(std::string(binary->name) == "endpoint-load-metrics-bin");
  OrcaLoadReport parsed;
  REQUIRE(parsed.ParseFromString(binary->value));
  CHECK(parsed.named_metrics().at("num_requests_waiting") == 3);
  for (const char* other : {"", "xml", "text ", "json,text", "TEXT\x01"}) {
    CHECK_FALSE(MakeLoadHeader(report, other).has_value());
  }
}

TEST_CASE("A call has a report in its trailers only if it asks for one", "[load_reports]") {
  RunningServer server;
  const auto trailers = [&](const char* format, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    if (format != nullptr) context.AddMetadata(kLoadFormatHeader, format);
    v1::GenerateResponse response;
    server.stub().Generate(&context, request, &response);
    std::map<std::string, std::string> found;
    for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
      if (key.starts_with("endpoint-load-metrics")) {
        found[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
      }
    }
    return found;
  };
  CHECK(trailers(nullptr, Word("a")).empty());
  CHECK(trailers("xml", Word("a")).empty());
  v1::GenerateRequest failing = Word("a");
  failing.mutable_call()->set_model("unknown");
  for (const v1::GenerateRequest& request : {Word("a"), failing}) {
    // gRPC gives a binary report to its balancers alone (tests/python/load_reports_test.py).
    for (const char* format : {"text", "json"}) {
      const auto report = trailers(format, request);
      REQUIRE(report.size() == 1);
      CHECK(absl::StartsWithIgnoreCase(report.at("endpoint-load-metrics"), format));
      CHECK(absl::StrContains(report.at("endpoint-load-metrics"), "kv_cache_usage_perc"));
    }
  }
}

TEST_CASE("A server streams its load until the client cancels", "[load_reports]") {
  RunningServer server;
  const auto stub = OpenRcaService::NewStub(server.channel());
  grpc::ClientContext context;
  OrcaLoadReportRequest request;
  request.mutable_report_interval()->set_nanos(1);  // less than a second: a second
  const auto reports = stub->StreamCoreMetrics(&context, request);
  OrcaLoadReport report;
  REQUIRE(reports->Read(&report));  // at once
  CHECK(report.mem_utilization() > 0);
  CHECK(report.mem_utilization() < 1);
  CHECK(report.named_metrics().at("num_requests_waiting") == 0);
  REQUIRE(Generate(server.stub(), Endless(21)).ok());
  double rate = 0;
  for (int i = 0; i < 5 && rate == 0; ++i) {
    REQUIRE(reports->Read(&report));
    rate = report.rps_fractional();
  }
  CHECK(rate > 0);
  CHECK(report.cpu_utilization() > 0);
  CHECK(report.eps() == 0);
  context.TryCancel();
  CHECK(reports->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("The utilization of a server counts requests that run and wait", "[load_reports]") {
  RunningServer server([](ServerOptions* options) { options->models[0].limits.max_running = 2; });
  const auto stub = OpenRcaService::NewStub(server.channel());
  grpc::ClientContext context;
  const auto reports = stub->StreamCoreMetrics(&context, OrcaLoadReportRequest());
  std::vector<std::thread> calls;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < 5; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.emplace_back([&server, context = contexts.back().get()] {
      v1::GenerateResponse response;
      while (server.stub().Generate(context, Endless(4000), &response).ok()) {
      }
    });
  }
  OrcaLoadReport report;
  for (int i = 0; i < 20 && report.application_utilization() < 1; ++i) {
    REQUIRE(reports->Read(&report));
  }
  CHECK(report.application_utilization() >= 1);  // a mean of 0 and 2.5
  CHECK(report.application_utilization() <= 2.5);
  CHECK(report.named_metrics().at("num_requests_running") == 2);
  CHECK(report.named_metrics().at("num_requests_waiting") == 3);
  for (const auto& one : contexts) one->TryCancel();
  for (std::thread& call : calls) call.join();
}

TEST_CASE("A server that stops ends streams of load reports", "[load_reports]") {
  RunningServer server;
  const auto stub = OpenRcaService::NewStub(server.channel());
  grpc::ClientContext context;
  const auto reports = stub->StreamCoreMetrics(&context, OrcaLoadReportRequest());
  OrcaLoadReport report;
  REQUIRE(reports->Read(&report));
  CHECK(server.Stop() == 0);
  while (reports->Read(&report)) {
  }
  CHECK(reports->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace quintet
