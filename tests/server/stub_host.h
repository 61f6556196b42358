// The objects that the methods of a server need, with a stub model and without sockets.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "server/call.h"
#include "server/health.h"
#include "server/kserve/methods.h"
#include "server/load_reports.h"
#include "server/methods.h"
#include "server/reflection.h"
#include "tests/catch.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {

struct StubHost {
  std::shared_ptr<StubControl> control = std::make_shared<StubControl>();
  ThreadPool pool{1};
  prometheus::Registry registry;
  RefusalMetrics refusals{MetricFactory(kNoModel, /*vllm_names=*/false, &registry)};
  MemoryBudget memory{int64_t{64} << 20};
  ModelDirectory directory;
  CallContext context;
  HealthStatus health;
  LoadMeter load{&directory};
  // Every call is traced. The exporter sends nothing: its spans wait for others until it is full.
  Tracer tracer{{}, MakeExporter()};
  std::vector<Method> methods;
  // The executors come last, so that they are destroyed first: their tasks use the members above.
  Executor preparation{{.name = "tokenize"}}, completion{{.name = "respond"}};
  ShardedExecutor writer{"write", 1};

  static std::unique_ptr<SpanExporter> MakeExporter() {
    SpanExporter::Options options;
    options.http.url = {.tls = false, .host = "127.0.0.1", .port = "1", .target = "/"};
    options.delay = std::chrono::hours(1);
    options.max_batch = options.max_queued + 1;
    auto exporter = SpanExporter::Start(std::move(options));
    REQUIRE(exporter.ok());
    return *std::move(exporter);
  }

  StubHost() {
    HostOptions options = TestOptions().models[0];
    UseStub(&options, control);
    const auto served = std::make_shared<ServedModel>(
        options,
        std::make_shared<ModelMetrics>(ModelMetrics::Options{.model_name = "g2p"}, &registry));
    const auto model = std::make_shared<ModelHost>(options, &pool, served->metrics());
    REQUIRE(served->BeginLoad().ok());
    REQUIRE(model->Prepare().ok());
    REQUIRE(model->Load(/*encoder_cache_bytes=*/0).ok());
    served->Loaded(model, /*on_gpu=*/false);
    directory.Set({served});
    context.models = &directory;
    context.preparation = &preparation;
    context.completion = &completion;
    context.writer = &writer;
    context.memory = &memory;
    context.refusals = &refusals;
    context.tracer = &tracer;
    context.load = &load;
    for (auto& some : {InferenceMethods(&context), HealthMethods(&health), LoadReportMethods(&load),
                       ReflectionMethods({"quintet.v1.Inference"}),
                       KserveMethods(&context, {.live = [] { return true; },
                                               .ready = [this] { return health.serving(); },
                                               .draining = [] { return false; },
                                               .version = "1"})}) {
      methods.insert(methods.end(), some.begin(), some.end());
    }
  }
};

}  // namespace quintet
