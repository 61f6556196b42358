#include "engine/engine_group.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// An engine without a model. A request ends at the first step after `finish` or `fail` was set.
class ScriptedEngine : public Engine {
 public:
  absl::StatusOr<RequestId> Submit(Request request) override {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return absl::UnavailableError("the device failed");
    sinks_.push_back(request.sink);
    ++counters_.accepted;
    ++counters_.waiting;
    return static_cast<RequestId>(counters_.accepted);
  }
  void Cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled.push_back(id);
  }
  EngineCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return counters_;
  }
  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  bool Step() override {
    std::vector<std::shared_ptr<ResponseSink>> ended;
    {
      const std::lock_guard lock(mutex_);
      if (fail) status_ = absl::InternalError("illegal access");
      if (fail || finish) ended.swap(sinks_);
      counters_.waiting -= static_cast<int64_t>(ended.size());
      counters_.finished += static_cast<int64_t>(ended.size());
    }
    for (const auto& sink : ended) {
      fail ? sink->OnDone(absl::InternalError("illegal access")) : sink->OnDone(Result());
    }
    return false;
  }
  void WaitForWork(int64_t) override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

  std::atomic<bool> finish{false}, fail{false};
  std::vector<RequestId> cancelled;

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
  EngineCounters counters_;
  std::vector<std::shared_ptr<ResponseSink>> sinks_;
};

struct GroupTest {
  explicit GroupTest(int count) : engines(static_cast<size_t>(count)) {
    std::vector<EngineGroup::Member> members;
    for (ScriptedEngine& engine : engines) members.push_back({&engine, {}});
    group = std::make_unique<EngineGroup>(
        std::move(members), [this](size_t index, const absl::Status&) { failed = index; });
  }
  std::shared_ptr<RecordingSink> Submit() {
    auto sink = std::make_shared<RecordingSink>();
    Request request;
    request.sink = sink;
    id = group->Submit(std::move(request));
    return sink;
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 10'000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }

  std::vector<ScriptedEngine> engines;
  std::atomic<int64_t> failed{-1};
  std::unique_ptr<EngineGroup> group;
  absl::StatusOr<RequestId> id;
};

TEST_CASE("A group gives a request to the engine with the fewest, and cancels it there") {
  GroupTest test(3);
  for (int i = 0; i < 30; ++i) test.Submit();
  for (const ScriptedEngine& engine : test.engines) CHECK(engine.counters().waiting == 10);
  test.engines[1].finish = true;
  REQUIRE(GroupTest::Eventually([&] { return test.engines[1].counters().waiting == 0; }));
  test.engines[1].finish = false;
  for (int i = 0; i < 10; ++i) test.Submit();
  for (const ScriptedEngine& engine : test.engines) CHECK(engine.counters().waiting == 10);
  const EngineCounters sum = EngineGroup::Sum(test.group->states());
  CHECK(sum.accepted == 40);
  CHECK(sum.finished == 10);
  REQUIRE(test.id.ok());
  test.group->Cancel(*test.id);
  CHECK(test.engines[1].cancelled == std::vector<RequestId>{20});
  CHECK(test.engines[0].cancelled.empty());
  CHECK(test.engines[2].cancelled.empty());
}

TEST_CASE("If a device fails, its requests end and the other engines get the next ones") {
  GroupTest test(2);
  const auto lost = test.Submit(), other = test.Submit();
  test.engines[0].fail = true;
  REQUIRE(GroupTest::Eventually([&] { return test.failed == 0; }));
  CHECK(absl::IsInternal((test.engines[0].counters().finished == 1 ? lost : other)->status) !=
        absl::IsInternal((test.engines[0].counters().finished == 1 ? other : lost)->status));
  for (int i = 0; i < 5; ++i) {
    test.Submit();
    CHECK(test.id.ok());
  }
  CHECK(test.engines[1].counters().waiting == 6);
  const std::vector<EngineGroup::State> states = test.group->states();
  CHECK_FALSE(states[0].works);
  CHECK(states[0].counters.waiting == 0);
  CHECK(states[1].works);
  CHECK(states[1].counters.waiting == 6);
  const std::vector<std::optional<uint64_t>> beats = test.group->heartbeats();
  REQUIRE(beats.size() == 2);
  CHECK_FALSE(beats[0].has_value());  // the watchdog must not see a stall
  CHECK(GroupTest::Eventually([&] { return test.group->heartbeats()[1] > beats[1]; }));
}

TEST_CASE("If the last device fails, the heartbeats stop and requests are refused") {
  GroupTest test(2);
  for (ScriptedEngine& engine : test.engines) engine.fail = true;
  REQUIRE(GroupTest::Eventually(
      [&] { return !test.engines[0].status().ok() && !test.engines[1].status().ok(); }));
  test.Submit();
  CHECK(absl::IsUnavailable(test.id.status()));
  test.group->Stop();
  const std::vector<std::optional<uint64_t>> beats = test.group->heartbeats();
  CHECK(beats[0].has_value());
  CHECK(beats[1].has_value());
  CHECK(test.group->heartbeats() == beats);
}

}  // namespace
}  // namespace quintet
