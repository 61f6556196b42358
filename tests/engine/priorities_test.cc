// Tests mixed requests of several priorities: high ones keep their pace, low ones make progress.
// (Equal results are tested in engine_traces_test.cc, whose traffic has all priorities.)
#include "engine/scheduler.h"
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

struct GapCounter : StepObserver {
  void OnStep(const StepReport& report) override { gaps += report.token_gaps_us.size(); }
  int64_t gaps = 0;
};

// An engine with a simulated clock. Each step advances the clock by step_us. By default step_us is
// 1, so that times are numbers of steps. If `fake` gives work a duration, the fake model advances
// the clock further.
struct PriorityScene {
  explicit PriorityScene(FakeOptions fake, EngineLimits limits = {})
      : fake_options(Timed(fake)), model(fake_options, &pool) {
    auto created = Engine::Create(
        &model, nullptr, limits, [this] { return now; }, &observer);
    REQUIRE(created.ok());
    engine = *std::move(created);
  }
  FakeOptions Timed(FakeOptions fake) {
    fake.clock_us = &now;
    fake.eos_bonus = -1000.0f;  // every request runs to its length
    return fake;
  }
  // Submits a greedy request for `new_tokens` tokens.
  Request Submit(Priority priority, int64_t new_tokens, int64_t input_tokens = 3) {
    DecodingOptions options;
    options.max_new_tokens = new_tokens;
    const int32_t token = 4 + static_cast<int32_t>(submitted++ % 16);
    Request request = GenerateRequest(model, std::vector<int32_t>(input_tokens, token), options);
    request.priority = priority;
    REQUIRE(engine->Submit(request).ok());
    return request;
  }
  bool Step() {
    now += step_us;
    return engine->Step();
  }
  void Finish() {
    for (int steps = 0; Step(); ++steps) REQUIRE(steps < 1000);
    CHECK(model.errors == std::vector<std::string>());
  }

  int64_t now = 0, step_us = 1;
  int64_t submitted = 0;
  ThreadPool pool{1};
  GapCounter observer;
  FakeOptions fake_options;
  FakeModel model;
  std::unique_ptr<Engine> engine;
};

const Timing& TimingOf(const Request& request) {
  const auto& sink = static_cast<const RecordingSink&>(*request.sink);
  REQUIRE(sink.status.ok());
  return sink.result.timing;
}

TEST_CASE("while a higher priority runs, lower ones get a token in every fourth step") {
  for (const bool async_scheduling : {false, true}) {
    PriorityScene scene({}, {.async_scheduling = async_scheduling});
    const Request low = scene.Submit(Priority::kLow, 60);
    const Request normal = scene.Submit(Priority::kNormal, 60);
    for (int step = 0; step < 5; ++step) scene.Step();
    const Request high = scene.Submit(Priority::kHigh, 24);
    scene.Finish();
    // With async scheduling, HIGH waits for one more step, which was already enqueued when it
    // arrived.
    CHECK(TimingOf(high).total_us <= 24 + (async_scheduling ? 2 : 1));
    // NORMAL needs 60 steps for its own tokens. In addition it is skipped in 18 of the 24 steps in
    // which HIGH runs. LOW runs in every fourth step until NORMAL has ended, then in every step.
    CHECK(TimingOf(normal).total_us >= 60 + 17);
    CHECK(TimingOf(normal).total_us <= 60 + 19);
    const int64_t shared = TimingOf(normal).total_us, own = 60 - shared / 4;
    CHECK(TimingOf(low).total_us >= shared + own - 3);
    CHECK(TimingOf(low).total_us <= shared + own + 3);
    // A request that is skipped in some steps must not waste steps that were enqueued ahead: in
    // total at most three decoder calls computed results that were not used.
    CHECK(scene.model.decodes <= TimingOf(low).total_us + 3);
    CHECK(scene.observer.gaps == 59 + 59 + 23);
  }
}

TEST_CASE("requests of one priority are never skipped") {
  for (const Priority priority : {Priority::kLow, Priority::kNormal, Priority::kHigh}) {
    PriorityScene scene({});
    const Request first = scene.Submit(priority, 40);
    for (int step = 0; step < 7; ++step) scene.Step();
    const Request second = scene.Submit(priority, 20);
    scene.Finish();
    CHECK(TimingOf(first).total_us <= 41);
    CHECK(TimingOf(second).total_us <= 21);
  }
}

TEST_CASE("a request that holds resources a higher priority waits for is not skipped") {
  PriorityScene scene({}, {.max_running_sequences = 2});
  const Request low = scene.Submit(Priority::kLow, 20);
  const Request high = scene.Submit(Priority::kHigh, 60);
  scene.Step();
  const Request waiting = scene.Submit(Priority::kHigh, 5);
  scene.Finish();
  CHECK(TimingOf(low).total_us <= 22);
  CHECK(TimingOf(waiting).queue_us <= 22);
  CHECK(TimingOf(waiting).total_us <= 28);
  CHECK(TimingOf(high).total_us <= 62);
}

TEST_CASE("lower classes start within their wait targets while HIGH requests fill the engine") {
  PriorityScene scene({}, {.max_running_sequences = 2});
  scene.step_us = 50'000;
  std::vector<Request> lower;
  for (int i = 0; i < 6; ++i) {
    lower.push_back(scene.Submit(i % 2 == 0 ? Priority::kLow : Priority::kNormal, 3));
  }
  // At least eight HIGH requests are queued at all times.
  for (int i = 0; i < 80; ++i) {
    scene.Submit(Priority::kHigh, 20);
    scene.Submit(Priority::kHigh, 20);
    while (scene.engine->counters().waiting > 14) scene.Step();
  }
  scene.Finish();
  REQUIRE(scene.now > 60'000'000);
  for (const Request& request : lower) {
    CHECK(TimingOf(request).queue_us <=
          Scheduler::kWaitTargetMicros[static_cast<size_t>(request.priority)]);
  }
}

TEST_CASE("while a higher priority is encoded, lower ones leave most steps to the encoder") {
  const auto wait_of = [](Priority running) {
    FakeOptions fake;
    fake.encode_us = 10;
    fake.decode_us = 400;
    fake.limits.max_step_tokens = 64;
    PriorityScene scene(fake, {.prefill_share = 0.5});
    for (int i = 0; i < 4; ++i) scene.Submit(running, 30);
    for (int step = 0; step < 5; ++step) scene.Step();
    const Request high = scene.Submit(Priority::kHigh, 2, 200);
    scene.Finish();
    return TimingOf(high).first_token_us;
  };
  // Encoding the HIGH request takes 2,000 us: 200 us in each of 10 steps. If the running requests
  // are HIGH too, each of the 10 steps also decodes for 400 us. If they are LOW, only every fourth
  // step decodes.
  const int64_t beside_high = wait_of(Priority::kHigh), beside_low = wait_of(Priority::kLow);
  CHECK(beside_high > 5000);
  CHECK(beside_low < beside_high * 2 / 3);
}

}  // namespace
}  // namespace quintet
