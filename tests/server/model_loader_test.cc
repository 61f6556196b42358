// Tests of loading, replacing and unloading models while they are used, with stub models whose
// loading fails or lacks memory if a test requires it.
#include "server/model_loader.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "engine/clock.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/micros.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {
namespace {

using Host = std::shared_ptr<ModelHost>;

// A loader without a server.
struct Loader {
  explicit Loader(const std::vector<std::string>& names = {"a"}) {
    for (const std::string& name : names) models.push_back(Options(name));
    ModelLoader::Options options;
    options.directory = &directory;
    options.pool = &pool;
    options.registry = &registry;
    options.memory = &memory;
    options.max_message_bytes = 1 << 20;
    options.read_models = [this] {
      ++readings;
      return models;
    };
    options.changed = [this] { ++changes; };
    loader = std::make_unique<ModelLoader>(std::move(options));
    loader->Configure(models);
    REQUIRE(loader->LoadAll().ok());
    loader->Start();
  }

  HostOptions Options(const std::string& name) {
    HostOptions options = TestOptions().models[0];
    options.name = name;
    options.limits.cache_bytes = 1 << 20;
    options.engine.encoder_cache_bytes = 0;
    UseStub(&options, std::make_shared<StubControl>());
    options.load_model = [this, load = options.load_model](
                             const std::string& directory, const LoadOptions& load_options,
                             ThreadPool* threads) -> absl::StatusOr<std::unique_ptr<Model>> {
      if (on_load != nullptr) {
        if (absl::Status status = on_load(); !status.ok()) return status;
      }
      return load(directory, load_options, threads);
    };
    return options;
  }

  ServedModel& model(const std::string& name = "a") { return **directory.Find(name); }
  ModelOutcome Do(void (ModelLoader::*operation)(const std::string&, ModelDone),
                  const std::string& name = "a") {
    std::promise<ModelOutcome> outcome;
    (loader.get()->*operation)(name, [&](const ModelOutcome& one) { outcome.set_value(one); });
    return outcome.get_future().get();
  }
  std::vector<ModelChange> ReloadConfiguration() {
    std::promise<std::vector<ModelChange>> changed;
    loader->ReloadConfiguration([&](absl::StatusOr<std::vector<ModelChange>> all) {
      REQUIRE(all.ok());
      changed.set_value(*std::move(all));
    });
    return changed.get_future().get();
  }

  std::function<absl::Status()> on_load;  // called by each load; its error fails the load
  std::atomic<int> changes{0}, readings{0};
  ModelDirectory directory;
  ThreadPool pool{1};
  prometheus::Registry registry;
  MemoryBudget memory{int64_t{64} << 20};
  std::vector<HostOptions> models;
  std::unique_ptr<ModelLoader> loader;
};

TEST_CASE("A version is freed when nobody holds it any more", "[model_loader]") {
  Loader loader;
  Host first = *loader.model().Acquire();
  CHECK(first->version() == 1);
  const ModelOutcome outcome = loader.Do(&ModelLoader::Reload);
  REQUIRE(outcome.status.ok());
  CHECK(outcome.version == 2);
  CHECK_FALSE(outcome.drained_first);
  CHECK((*loader.model().Acquire())->version() == 2);
  CHECK(loader.model().view().retired == 1);
  CHECK(EngineGroup::Sum(first->engine().states()).running == 0);  // it is still there
  CHECK(loader.loader->heartbeats().size() == 2);
  first.reset();
  CHECK(Eventually([&] { return loader.model().view().retired == 0; }));
  CHECK(loader.Do(&ModelLoader::Reload).version == 3);
  CHECK(loader.loader->heartbeats().size() == 2);  // an index is used again
}

TEST_CASE("A failed replacement leaves the version that serves", "[model_loader]") {
  Loader loader;
  loader.on_load = [] { return absl::InvalidArgumentError("broken"); };
  const ModelOutcome outcome = loader.Do(&ModelLoader::Reload);
  CHECK(absl::IsFailedPrecondition(outcome.status));
  CHECK(absl::StrContains(outcome.status.message(), "broken"));
  CHECK(outcome.version == 1);
  CHECK(loader.model().view().failure == outcome.status.message());
  CHECK((*loader.model().Acquire())->version() == 1);
}

TEST_CASE("The failure of a load names no directories", "[model_loader]") {
  Loader loader;
  loader.models[0].load.adapters = {{"one", "/secret/adapters/one"}};
  const std::vector<ModelChange> changes = loader.ReloadConfiguration();
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].outcome.status.message() == "adapter one: one: no such directory or file");
}

TEST_CASE("Without memory for both, the old version is drained and calls wait", "[model_loader]") {
  Loader loader;
  loader.on_load = [&] {
    const ServedModel::View view = loader.model().view();
    return view.version != 0 ? absl::ResourceExhaustedError("no memory") : absl::OkStatus();
  };
  Host first = *loader.model().Acquire();
  std::future<ModelOutcome> reload =
      std::async(std::launch::async, [&] { return loader.Do(&ModelLoader::Reload); });
  REQUIRE(Eventually([&] { return loader.model().view().state == ModelState::kDraining; }));
  CHECK(loader.model().accepts());
  const absl::StatusOr<Host> none = loader.model().Acquire();
  REQUIRE(none.ok());
  CHECK(*none == nullptr);
  std::promise<uint64_t> served;
  loader.model().Wait(MonotonicMicros() + 60 * kSecond, [&](absl::StatusOr<Host> host) {
    served.set_value(host.ok() ? (*host)->version() : 0);
  });
  CHECK(loader.model().waiting() == 1);
  first.reset();  // the last call ends
  CHECK(served.get_future().get() == 2);
  const ModelOutcome outcome = reload.get();
  CHECK(outcome.status.ok());
  CHECK(outcome.drained_first);
  CHECK(outcome.version == 2);
}

TEST_CASE("If the replacement fails after the drain, the old configuration is loaded again",
          "[model_loader]") {
  Loader loader;
  int loads = 0;
  loader.on_load = [&]() -> absl::Status {
    const bool beside = loader.model().view().version != 0;
    if (beside) return absl::ResourceExhaustedError("no memory");
    return ++loads == 1 ? absl::InvalidArgumentError("broken") : absl::OkStatus();
  };
  SECTION("and serves") {
    const ModelOutcome outcome = loader.Do(&ModelLoader::Reload);
    CHECK(absl::IsFailedPrecondition(outcome.status));
    CHECK(outcome.drained_first);
    CHECK(outcome.version == 2);
    CHECK(loader.model().view().state == ModelState::kServing);
    CHECK(absl::StrContains(loader.model().view().failure, "broken"));
  }
  SECTION("or cannot be loaded either") {
    loads = -100;  // all fail
    loader.on_load = [&, serving = loader.on_load]() -> absl::Status {
      const absl::Status status = serving();
      return status.ok() ? absl::InvalidArgumentError("broken, too") : status;
    };
    std::promise<absl::Status> waited;
    Host first = *loader.model().Acquire();
    std::future<ModelOutcome> reload =
        std::async(std::launch::async, [&] { return loader.Do(&ModelLoader::Reload); });
    REQUIRE(Eventually([&] { return loader.model().view().state == ModelState::kDraining; }));
    loader.model().Wait(MonotonicMicros() + 60 * kSecond,
                        [&](const absl::StatusOr<Host>& host) { waited.set_value(host.status()); });
    first.reset();
    CHECK_FALSE(reload.get().status.ok());
    CHECK(absl::IsUnavailable(waited.get_future().get()));
    CHECK(loader.model().view().state == ModelState::kFailed);
    loader.on_load = nullptr;
    CHECK(loader.Do(&ModelLoader::Load).version == 2);
  }
}

TEST_CASE("A replacement waits for memory of versions that still run calls", "[model_loader]") {
  Loader loader;
  Host first = *loader.model().Acquire();
  REQUIRE(loader.Do(&ModelLoader::Reload).status.ok());  // version 1 is retired, but held
  loader.on_load = [&] {
    return loader.model().view().retired > 0 ? absl::ResourceExhaustedError("no memory")
                                             : absl::OkStatus();
  };
  std::future<ModelOutcome> reload =
      std::async(std::launch::async, [&] { return loader.Do(&ModelLoader::Reload); });
  REQUIRE(Eventually([&] { return loader.model().view().state == ModelState::kReplacing; }));
  CHECK((*loader.model().Acquire())->version() == 2);  // it serves on
  first.reset();
  const ModelOutcome outcome = reload.get();
  CHECK(outcome.status.ok());
  CHECK_FALSE(outcome.drained_first);
  CHECK(outcome.version == 3);
}

TEST_CASE("An idle model is loaded by the first call, once for all that wait", "[model_loader]") {
  Loader loader;
  loader.models[0].idle_unload_us = 1;
  REQUIRE(loader.ReloadConfiguration()[0].action == ModelChange::Action::kReplaced);
  REQUIRE(Eventually([&] { return loader.model().view().state == ModelState::kIdle; }));
  std::atomic<int> loads{0};
  std::promise<void> go_on;
  std::shared_future<void> may_load = go_on.get_future().share();
  loader.on_load = [&, may_load] {
    ++loads;
    may_load.wait();
    return absl::OkStatus();
  };
  std::vector<std::promise<uint64_t>> served(5);
  for (auto& one : served) {
    const absl::StatusOr<Host> host = loader.model().Acquire();
    REQUIRE(host.ok());
    loader.model().Wait(MonotonicMicros() + 60 * kSecond, [&one](absl::StatusOr<Host> waited) {
      one.set_value(waited.ok() ? (*waited)->version() : 0);
    });
  }
  CHECK(loader.model().waiting() == 5);
  go_on.set_value();
  for (auto& one : served) CHECK(one.get_future().get() == 3);
  CHECK(loads == 1);
}

TEST_CASE("A call waits no longer than its deadline, and can stop waiting", "[model_loader]") {
  Loader loader;
  loader.models[0].idle_unload_us = 1;
  loader.ReloadConfiguration();
  REQUIRE(Eventually([&] { return loader.model().view().state == ModelState::kIdle; }));
  std::promise<void> go_on;
  std::shared_future<void> may_load = go_on.get_future().share();
  loader.on_load = [may_load] {
    may_load.wait();
    return absl::OkStatus();
  };
  REQUIRE(loader.model().Acquire().ok());
  absl::Status expired;
  loader.model().Wait(5, [&](const absl::StatusOr<Host>& host) { expired = host.status(); });
  loader.directory.ExpireWaits(4);
  CHECK(expired.ok());
  loader.directory.ExpireWaits(5);
  CHECK(absl::IsDeadlineExceeded(expired));
  bool called = false;
  const uint64_t ticket = loader.model().Wait(MonotonicMicros() + 60 * kSecond,
                                              [&](const absl::StatusOr<Host>&) { called = true; });
  CHECK(loader.model().StopWaiting(ticket));
  CHECK_FALSE(loader.model().StopWaiting(ticket));
  go_on.set_value();
  CHECK(Eventually([&] {
    return loader.model().view().version == 3 || !loader.model().accepts() ||
           loader.model().view().state == ModelState::kIdle;
  }));
  CHECK_FALSE(called);
}

TEST_CASE("A second operation on a model is refused while one is in progress", "[model_loader]") {
  Loader loader({"a", "b"});
  std::promise<void> go_on;
  std::shared_future<void> may_load = go_on.get_future().share();
  std::atomic<bool> loading{false};
  loader.on_load = [&, may_load] {
    loading = true;
    may_load.wait();
    return absl::OkStatus();
  };
  std::future<ModelOutcome> first =
      std::async(std::launch::async, [&] { return loader.Do(&ModelLoader::Reload); });
  REQUIRE(Eventually([&] { return loading.load(); }));
  for (const auto operation : {&ModelLoader::Reload, &ModelLoader::Load, &ModelLoader::Unload}) {
    CHECK(absl::IsAborted(loader.Do(operation).status));
  }
  CHECK(absl::IsNotFound(loader.Do(&ModelLoader::Unload, "c").status));
  CHECK(absl::IsInvalidArgument(loader.Do(&ModelLoader::Unload, "").status));
  // The removal of model "a" waits until "a" is loaded; a later configuration adds "a" again.
  std::promise<std::vector<ModelChange>> removed, restored;
  const HostOptions a = loader.models[0];
  loader.models.erase(loader.models.begin());
  loader.loader->ReloadConfiguration(
      [&](const absl::StatusOr<std::vector<ModelChange>>& all) { removed.set_value(*all); });
  go_on.set_value();
  CHECK(first.get().status.ok());
  const std::vector<ModelChange> changes = removed.get_future().get();
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].action == ModelChange::Action::kUnchanged);
  CHECK(changes[1].model == "a");
  CHECK(changes[1].action == ModelChange::Action::kUnloaded);
  CHECK(absl::IsNotFound(loader.directory.Find("a").status()));
  loader.models.push_back(a);
  CHECK(loader.ReloadConfiguration()[1].action == ModelChange::Action::kLoaded);
  CHECK((*loader.model("a").Acquire())->version() == 1);
}

TEST_CASE("Metrics of a model vanish with it, and continue over its versions", "[model_loader]") {
  Loader loader({"a", "b"});
  const auto series = [&](const std::string& name) {
    int64_t count = 0;
    for (const prometheus::MetricFamily& family : loader.registry.Collect()) {
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& label : metric.label) count += label.value == name;
      }
    }
    return count;
  };
  loader.loader->CollectMetrics();
  const int64_t before = series("a");
  REQUIRE(before > 30);
  loader.model().metrics()->Rejected("QUEUE_FULL");
  REQUIRE(loader.Do(&ModelLoader::Reload).status.ok());
  loader.loader->CollectMetrics();
  CHECK(series("a") == before);
  REQUIRE(loader.Do(&ModelLoader::Unload).status.ok());
  CHECK(series("a") == before - 6);  // cache_config_info and the five of the engine
  loader.models.erase(loader.models.begin());
  loader.ReloadConfiguration();
  CHECK(Eventually([&] { return series("a") == 0; }));
  CHECK(series("b") == before);
}

TEST_CASE("Calls and operations of many threads", "[model_loader]") {
  Loader loader({"a", "b"});
  std::atomic<bool> end{false};
  std::atomic<int64_t> used{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, name = i % 2 == 0 ? "a" : "b"] {
      uint64_t last = 0;
      while (!end) {
        const Host host = *loader.model(name).Acquire();
        if (host == nullptr) continue;
        if (host->version() < last) ++wrong;  // versions only grow
        last = host->version();
        (void)host->engine().states();
        ++used;
      }
    });
  }
  for (int i = 0; i < 40; ++i) {
    CHECK(loader.Do(&ModelLoader::Reload, i % 2 == 0 ? "a" : "b").status.ok());
    (void)loader.loader->heartbeats();
    loader.loader->CollectMetrics();
    if (i % 8 == 0) loader.ReloadConfiguration();
  }
  CHECK(Eventually([&] { return used > 100; }));
  end = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(loader.model("a").view().version == 21);
  CHECK(loader.readings == 5);
}

}  // namespace
}  // namespace quintet
