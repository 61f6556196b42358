// Tests how requests end when the GPU runs out of memory or fails while they run. A separate
// program, because after a fault its process cannot use the GPU any more.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "engine/engine_group.h"
#include "tests/catch.h"
#include "tests/engine/illegal_access_gpu.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

constexpr char kModel[] = QUINTET_SOURCE_DIR "/deploy/models/g2p";

absl::StatusOr<std::unique_ptr<Model>> Load(Device* device, int64_t cache_pages, ThreadPool* pool) {
  LoadOptions options;
  options.device = device;
  options.weights = WeightType::kBF16;
  options.limits.max_step_sequences = 2;
  options.limits.cache_pages = cache_pages;
  return Model::Load(kModel, options, pool);
}

class StatusSink : public ResponseSink {
 public:
  void OnDone(absl::StatusOr<Result> result) override { status = result.status(); }
  std::optional<absl::Status> status;
};

std::shared_ptr<StatusSink> Submit(Engine* engine, int32_t new_tokens) {
  auto sink = std::make_shared<StatusSink>();
  Request request;
  request.input = {5, 6, 7, 8, 1};
  request.decoding.max_new_tokens = new_tokens;
  request.decoding.prompt = {0};  // no eos: exactly max_new_tokens tokens
  request.sink = sink;
  const absl::Status status = engine->Submit(std::move(request)).status();
  if (!status.ok()) sink->status = status;
  return sink;
}

TEST_CASE(
    "a model that does not fit the GPU is refused, and a smaller configuration loads afterwards") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(1);
  const auto refused = Load(device.get(), int64_t{1} << 26, &pool);
  INFO(refused.status());
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK(absl::IsResourceExhausted(device->Allocate(int64_t{1} << 50).status()));
  CHECK(device->Synchronize().ok());
  CHECK(Load(device.get(), 64, &pool).ok());
}

// CUDA ends the use of all GPUs of a process after a fault of a kernel, so every engine of the
// group fails. None of its requests may stay without an end.
// Runs alone (engine_fault_two_gpus), because the other test cases need a GPU, too.
TEST_CASE("a fault of one of two GPUs ends all requests of the group", "[.][two_gpus]") {
  if (Device::Count() < 2) {
    WARN("skipped: needs two GPUs");
    return;
  }
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<ThreadPool>> pools;
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<EngineGroup::Member> members;
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    devices.push_back(*Device::Open(ordinal));
    pools.push_back(std::make_unique<ThreadPool>(1));
    auto model = Load(devices.back().get(), 64, pools.back().get());
    REQUIRE(model.ok());
    models.push_back(*std::move(model));
    EngineLimits limits;
    limits.max_running_sequences = 2;
    engines.push_back(*Engine::Create(models.back().get(), nullptr, limits));
    members.push_back({engines.back().get(), {}});
  }
  std::atomic<int> failures{0};
  EngineGroup group(std::move(members), [&](size_t, const absl::Status&) { ++failures; });
  const auto eventually = [](auto condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  };
  std::vector<std::shared_ptr<StatusSink>> sinks;
  const auto submit = [&] {
    sinks.push_back(std::make_shared<StatusSink>());
    Request request;
    request.input = {5, 6, 7, 8, 1};
    request.decoding.max_new_tokens = 60;
    request.decoding.prompt = {0};
    request.sink = sinks.back();
    return group.Submit(std::move(request)).status();
  };
  for (int i = 0; i < 100; ++i) CHECK(submit().ok());
  devices[1]->Use();
  QueueIllegalAccess(devices[1]->queue());
  const auto ended = [&] {
    const EngineCounters sum = EngineGroup::Sum(group.states());
    return sum.running == 0 && sum.waiting == 0;
  };
  REQUIRE(eventually([&] { return failures == 2 || (failures == 1 && ended()); }));
  for (int i = 0; i < 100; ++i) {
    const absl::Status status = submit();
    if (!status.ok()) sinks.back()->status = status;
  }
  REQUIRE(eventually(ended));
  group.Stop();
  int done = 0;
  for (const auto& sink : sinks) {
    REQUIRE(sink->status.has_value());
    const bool lost = absl::IsInternal(*sink->status) || absl::IsUnavailable(*sink->status);
    CHECK((sink->status->ok() || lost));
    done += sink->status->ok() ? 1 : 0;
  }
  CHECK_FALSE(engines[1]->status().ok());
  CHECK(engines[0]->counters().finished + engines[1]->counters().finished == done);
}

TEST_CASE("a fault ends running requests INTERNAL, queued and later ones UNAVAILABLE") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(1);
  auto model = Load(device.get(), 64, &pool);
  INFO(model.status());
  REQUIRE(model.ok());
  EngineLimits limits;
  limits.max_running_sequences = 2;
  auto engine = Engine::Create(model->get(), nullptr, limits);
  REQUIRE(engine.ok());

  const int64_t allocations = device->allocations();
  const auto done = Submit(engine->get(), 60);
  for (int i = 0; i < 100 && (*engine)->Step(); ++i) {
  }
  REQUIRE(done->status.has_value());
  CHECK(done->status->ok());
  CHECK(device->allocations() == allocations);

  const auto first = Submit(engine->get(), 60), second = Submit(engine->get(), 60);
  const auto waiting = Submit(engine->get(), 60);
  for (int i = 0; i < 3; ++i) (*engine)->Step();
  CHECK_FALSE(first->status.has_value());
  CHECK((*engine)->status().ok());
  QueueIllegalAccess(device->queue());
  for (int i = 0; i < 3; ++i) (*engine)->Step();

  REQUIRE(first->status.has_value());
  REQUIRE(second->status.has_value());
  REQUIRE(waiting->status.has_value());
  INFO(*first->status);
  CHECK(absl::IsInternal(*first->status));
  CHECK(absl::IsInternal(*second->status));
  CHECK(absl::IsUnavailable(*waiting->status));
  CHECK_FALSE((*engine)->status().ok());
  CHECK(absl::IsUnavailable(*Submit(engine->get(), 1)->status));
  // The device keeps reporting its first error.
  CHECK(absl::IsInternal(device->Synchronize()));
  CHECK(device->Synchronize() == device->status());
  CHECK_FALSE((*engine)->Step());
}

}  // namespace
}  // namespace quintet
