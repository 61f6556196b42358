// Tests that every documented metric is exported and gets values, under its native name and under
// its vLLM name.
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/metrics.h"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

// Names of the histograms that a Generate call fills, without the prefix quintet_.
const char* const kFilled[] = {"time_to_first_token_seconds",
                               "inter_token_latency_seconds",
                               "request_time_per_output_token_seconds",
                               "e2e_request_latency_seconds",
                               "request_queue_time_seconds",
                               "request_encode_time_seconds",
                               "request_prefill_time_seconds",
                               "request_decode_time_seconds",
                               "request_inference_time_seconds",
                               "request_prompt_tokens",
                               "request_generation_tokens",
                               "request_max_num_generation_tokens",
                               "step_batch_size"};

TEST_CASE("Lost log lines are counted once, however often metrics are collected", "[metrics]") {
  int64_t dropped = 0;
  RunningServer server(
      [&](ServerOptions* options) { options->log_lines_dropped = [&] { return dropped; }; });
  const char kName[] = "quintet_log_lines_dropped_total";
  CHECK(server.Metric(kName) == 0);
  dropped = 5;
  CHECK(server.Metric(kName) == 5);
  CHECK(server.Metric(kName) == 5);
  dropped = 7;
  CHECK(server.Metric(kName) == 7);
}

TEST_CASE("Every metric is exported, and a call fills the histograms", "[metrics]") {
  RunningServer server;
  v1::GenerateResponse response;
  REQUIRE(Generate(server.stub(), Endless(21), &response).ok());
  for (const char* name : kFilled) {
    INFO(name);
    CHECK(server.Metric(absl::StrCat("quintet_", name, "_count")) >= 1);
    CHECK(server.Metric(absl::StrCat("quintet_", name, "_sum")) > 0);
    CHECK(server.Metric(absl::StrCat("quintet_", name, "_bucket{")) > 0);
  }
  CHECK(server.Metric("quintet_inter_token_latency_seconds_count") == 20);
  CHECK(server.Metric("quintet_step_batch_size_count") == 21);
  CHECK(server.Metric("quintet_generation_tokens_total") == 21);
  CHECK(server.Metric("quintet_prompt_tokens_total") == response.info().usage().input_tokens());
  CHECK(server.Metric("quintet_request_prompt_tokens_sum") ==
        response.info().usage().input_tokens());
  const std::string text = server.Get("/metrics");
  for (const char* name : {"requests_running",
                           "requests_waiting",
                           "kv_cache_usage_ratio",
                           "engine_up",
                           "engine_requests_running",
                           "engine_requests_waiting",
                           "engine_kv_cache_usage_ratio",
                           "engine_generation_tokens_total",
                           "queue_tokens",
                           "ready",
                           "cache_config_info",
                           "build_info",
                           "model_version",
                           "model_versions_retired",
                           "model_loads_total",
                           "model_load_seconds_count",
                           "model_unloads_total",
                           "requests_accepted_total",
                           "requests_finished_total",
                           "requests_rejected_total",
                           "preemptions_total",
                           "encoder_cache_queries_total",
                           "encoder_cache_hits_total",
                           "open_calls",
                           "log_lines_dropped_total"}) {
    INFO(name);
    CHECK(absl::StrContains(text, absl::StrCat("\nquintet_", name, "{")));
  }
  CHECK(absl::StrContains(text, "block_size=\"16\""));
  CHECK(absl::StrContains(text, "num_gpu_blocks=\""));
  CHECK_FALSE(absl::StrContains(text, "vllm:"));
}

TEST_CASE("GPU memory is one gauge per use", "[metrics]") {
  prometheus::Registry registry;
  ModelMetrics metrics({.model_name = "m"}, &registry);
  const auto kinds = [&] {
    std::map<std::string, double> found;
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name != "quintet_gpu_memory_bytes") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.name == "kind") found[label.value] = metric.gauge.value;
        }
      }
    }
    return found;
  };
  CHECK(kinds().empty());  // no GPU memory is exported on a CPU
  metrics.Loaded({.version = 1, .page_size = 16, .pages = 8});
  CHECK(kinds().empty());
  MemoryPlan plan{.model = {.weights = 5, .cache = 4, .workspace = 3, .adapters = 6},
                  .search = 2,
                  .runtime = 1};
  metrics.Loaded({.version = 2, .page_size = 16, .pages = 8, .gpu = &plan});
  const std::map<std::string, double> planned = {{"adapters", 6}, {"cache", 4},   {"runtime", 1},
                                                 {"search", 2},   {"weights", 5}, {"workspace", 3}};
  CHECK(kinds() == planned);
  plan.search = 7;
  metrics.Loaded({.version = 3, .page_size = 16, .pages = 8, .gpu = &plan});
  CHECK(kinds()["search"] == 7);
  metrics.NotServing();
  CHECK(kinds().empty());
}

TEST_CASE("Each engine of the version that serves has metrics of its own", "[metrics]") {
  prometheus::Registry registry;
  ModelMetrics metrics({.model_name = "m"}, &registry);
  // Values of the engines, in their order.
  const auto values = [&](const std::string& name) {
    std::map<std::string, double> found;
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name != "quintet_engine_" + name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.name == "engine")
            found[label.value] = metric.gauge.value + metric.counter.value;
        }
      }
    }
    return found;
  };
  using Values = std::map<std::string, double>;
  std::vector<EngineGroup::State> engines(2);
  metrics.SetEngines(0, engines);
  CHECK(values("up").empty());  // nothing serves
  metrics.Loaded({.version = 1, .page_size = 16, .pages = 8});
  engines[0].counters = {
      .running = 3, .waiting = 2, .generated_tokens = 40, .pages_used = 1, .pages_total = 4};
  engines[1].works = false;
  metrics.SetEngines(1, engines);
  CHECK(values("up") == Values{{"0", 1}, {"1", 0}});
  CHECK(values("requests_running") == Values{{"0", 3}, {"1", 0}});
  CHECK(values("requests_waiting") == Values{{"0", 2}, {"1", 0}});
  CHECK(values("kv_cache_usage_ratio") == Values{{"0", 0.25}, {"1", 0}});
  CHECK(values("generation_tokens_total") == Values{{"0", 40}, {"1", 0}});
  engines[0].counters.generated_tokens = 45;
  metrics.SetEngines(1, engines);
  CHECK(values("generation_tokens_total") == Values{{"0", 45}, {"1", 0}});

  metrics.Loaded({.version = 2, .page_size = 16, .pages = 8});
  CHECK(values("up").empty());
  metrics.SetEngines(1, engines);  // the version that was replaced still works
  CHECK(values("up").empty());
  metrics.SetEngines(2, std::vector<EngineGroup::State>(1));
  CHECK(values("up") == Values{{"0", 1}});
  metrics.NotServing();
  metrics.SetEngines(2, engines);
  CHECK(values("up").empty());
}

TEST_CASE("Adapters of requests are labels of one gauge, whose value is the time", "[metrics]") {
  prometheus::Registry registry;
  ModelMetrics metrics({.model_name = "m", .vllm_names = true}, &registry);
  // The labels max_lora, running_lora_adapters and waiting_lora_adapters of each series.
  const auto series = [&](const std::string& name) {
    metrics.SetGauges({}, 0, 0);
    std::vector<std::string> found;
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name != name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        std::map<std::string, std::string> labels;
        for (const auto& label : metric.label) labels[label.name] = label.value;
        found.push_back(labels["max_lora"] + "|" + labels["running_lora_adapters"] + "|" +
                        labels["waiting_lora_adapters"]);
        CHECK(metric.gauge.value > 1.7e9);
      }
    }
    return found;
  };
  using Series = std::vector<std::string>;
  const char kName[] = "quintet_lora_requests_info";
  CHECK(series(kName).empty());
  metrics.SetAdapters(std::vector<AdapterSource>{{"a", "/a"}, {"b", "/b"}}, 4);
  CHECK(series(kName) == Series{"4||"});
  metrics.AcceptedAdapter("b");
  metrics.AcceptedAdapter("a");
  metrics.StartedAdapter("b");
  CHECK(series(kName) == Series{"4|b|a"});
  CHECK(series("vllm:lora_requests_info") == Series{"4|b|a"});
  metrics.FinishedAdapter("b", /*started=*/true);
  metrics.FinishedAdapter("a", /*started=*/false);
  CHECK(series(kName) == Series{"4||"});
  metrics.SetAdapters({}, 0);
  CHECK(series(kName).empty());
}

TEST_CASE("Requests are counted by adapter, as long as there is one of the name", "[metrics]") {
  prometheus::Registry registry;
  ModelMetrics metrics({.model_name = "m"}, &registry);
  const auto counts = [&] {
    std::map<std::string, double> found;
    for (const prometheus::MetricFamily& family : registry.Collect()) {
      if (family.name != "quintet_adapter_requests_total") continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) {
          if (label.name == "adapter") found[label.value] = metric.counter.value;
        }
      }
    }
    return found;
  };
  using Counts = std::map<std::string, double>;
  metrics.AcceptedAdapter("a");  // unknown
  CHECK(counts().empty());
  const AdapterSource a{"a", "/a"}, b{"b", "/b"};
  metrics.SetAdapters(std::vector{a, b}, 4);
  metrics.AcceptedAdapter("a");
  metrics.SetAdapters(std::vector{b, a}, 4);
  CHECK(counts() == Counts{{"a", 1}, {"b", 0}});
  metrics.SetAdapters(std::vector{b}, 4);
  CHECK(counts() == Counts{{"b", 0}});
  metrics.SetAdapters(std::vector{a, b}, 4);
  CHECK(counts() == Counts{{"a", 0}, {"b", 0}});
  std::vector<AdapterSource> many;
  for (size_t i = 0; i < ModelMetrics::kMaxCountedAdapters + 3; ++i) {
    many.push_back({"many" + std::to_string(i), "/many"});
  }
  metrics.SetAdapters(many, 4);
  metrics.AcceptedAdapter(many.back().name);
  CHECK(counts().size() == ModelMetrics::kMaxCountedAdapters + 1);
  CHECK(counts()["other"] == 1);
}

TEST_CASE("With --metrics-compat=vllm the aliases have the same values", "[metrics]") {
  RunningServer server([](ServerOptions* options) { options->models[0].vllm_metrics = true; });
  REQUIRE(Generate(server.stub(), Endless(21)).ok());
  REQUIRE(Generate(server.stub(), Word("wagner", 4)).ok());
  const std::set<std::string> native_only = {"request_encode_time_seconds", "step_batch_size"};
  for (const char* name : kFilled) {
    if (native_only.count(name) > 0) continue;
    INFO(name);
    CHECK(server.Metric(absl::StrCat("vllm:", name, "_count")) ==
          server.Metric(absl::StrCat("quintet_", name, "_count")));
    CHECK(server.Metric(absl::StrCat("vllm:", name, "_sum")) ==
          server.Metric(absl::StrCat("quintet_", name, "_sum")));
  }
  CHECK(server.Metric("vllm:time_per_output_token_seconds_count") ==
        server.Metric("quintet_inter_token_latency_seconds_count"));
  for (const char* name : {"prompt_tokens_total", "generation_tokens_total"}) {
    CHECK(server.Metric(absl::StrCat("vllm:", name)) > 0);
    CHECK(server.Metric(absl::StrCat("vllm:", name)) ==
          server.Metric(absl::StrCat("quintet_", name)));
  }
  const std::string text = server.Get("/metrics");
  for (const char* name : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                           "gpu_cache_usage_perc", "cache_config_info", "num_preemptions_total"}) {
    INFO(name);
    CHECK(absl::StrContains(text, absl::StrCat("\nvllm:", name, "{")));
  }
  const std::string success = "vllm:request_success_total{engine=\"0\",finished_reason=\"";
  CHECK(server.Metric(success + "length\"") == 1);
  CHECK(server.Metric(success + "stop\"") == 1);
  CHECK(server.Metric(success + "abort\"") == 0);
}

TEST_CASE("The HTTP server answers health, readiness and metrics, and nothing else", "[metrics]") {
  RunningServer server;
  CHECK(absl::StartsWith(server.GetRaw("/healthz"), "HTTP/1.1 200 OK"));
  CHECK(absl::StartsWith(server.GetRaw("/readyz"), "HTTP/1.1 200 OK"));
  const std::string metrics = server.GetRaw("/metrics");
  CHECK(absl::StrContains(metrics, "Content-Type: text/plain; version=0.0.4"));
  for (const char* path :
       {"/", "/metrics/../etc/passwd", "/healthz.bak", "/metrics/x", "/%2e%2e/"}) {
    INFO(path);
    CHECK_FALSE(absl::StartsWith(server.GetRaw(path), "HTTP/1.1 200"));
  }
  CHECK(server.Get("/healthz") == "ok\n");
}

TEST_CASE("Several models in one process have their own names, limits and metrics", "[metrics]") {
  RunningServer server([](ServerOptions* options) {
    options->models.push_back(options->models[0]);
    options->models[1].name = "small";
    options->models[1].decoding.max_new_tokens = 10;
  });
  CHECK(Generate(server.stub(), Word("wagner")).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  v1::GenerateRequest request = Word("wagner");
  request.mutable_call()->set_model("g2p");
  v1::GenerateResponse response;
  REQUIRE(Generate(server.stub(), request, &response).ok());
  CHECK(response.info().model() == "g2p");
  CHECK(response.sequences(0).text() == "W AE1 G N ER0");
  request.mutable_call()->set_model("small");
  CHECK(Generate(server.stub(), request).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_decoding()->set_max_new_tokens(10);
  REQUIRE(Generate(server.stub(), request, &response).ok());
  CHECK(response.info().model() == "small");
  const std::string accepted = "quintet_requests_accepted_total{engine=\"0\",model_name=\"";
  CHECK(server.Metric(accepted + "g2p\"") == 1);
  CHECK(server.Metric(accepted + "small\"") == 1);
}

TEST_CASE("GetModelInfo returns the SHA-256 of the weights once it is computed", "[metrics]") {
  RunningServer server;
  const std::string expected =
      Sha256OfFile(server.options().models[0].directory + "/model.safetensors");
  v1::GetModelInfoResponse info;
  const auto known = [&] {
    grpc::ClientContext context;
    return server.stub().GetModelInfo(&context, v1::GetModelInfoRequest(), &info).ok() &&
           !info.weights_sha256().empty();
  };
  bool found = false;  // the hash runs at the lowest priority: slow on a busy machine
  for (int i = 0; i < 10 && !found; ++i) found = Eventually(known);
  CHECK(found);
  CHECK(info.weights_sha256() == expected);
}

}  // namespace
}  // namespace quintet
