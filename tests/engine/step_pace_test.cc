// Tests, on the fake model's clock, that encoding and prefill do not slow down running streams.
#include "engine/step_pace.h"

#include <algorithm>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

TEST_CASE("pace: work follows the measured rate", "[pace]") {
  WorkRate rate(4);
  CHECK(rate.WorkFor(1000) == 4);
  rate.Record(100, 50);
  CHECK(rate.WorkFor(1000) == 2000);
  CHECK(rate.WorkFor(-5) == 4);
  rate.Record(100, 0);  // 0 us counts as 1 us
  CHECK(rate.WorkFor(10) == 510);
  CHECK(rate.WorkFor(int64_t{1} << 60) > int64_t{1} << 30);
}

TEST_CASE("pace: prefill time follows the duration of steps that only decode", "[pace]") {
  StepPace pace(0.5);
  CHECK(pace.PrefillUs(true) == 0);  // unknown
  CHECK(pace.PrefillUs(false) > 0);
  pace.RecordDecode(true, 0, 1000);
  CHECK(pace.PrefillUs(true) == 500);
  pace.RecordDecode(true, 100, 5000);  // 4000 us of prefill: 25 tokens per ms
  CHECK(pace.PrefillUs(true) == 500);
  CHECK(pace.PrefillTokens(true, 800) == 20);
  CHECK(pace.PrefillTokens(false, 800) > 1000);
  pace.RecordDecode(true, 0, 1'000'000);  // an outlier
  CHECK(pace.PrefillUs(true) == 600);
  for (int i = 0; i < 100; ++i) pace.RecordDecode(true, 0, 4000);
  CHECK(pace.PrefillUs(true) == Approx(2000).margin(2));
  const StepPace unlimited(0.0);
  CHECK(unlimited.PrefillUs(true) > 1'000'000'000);
  CHECK(unlimited.PrefillTokens(true, 0) > 1'000'000);
}

struct Traffic {
  FakeOptions fake;
  int64_t decode_us = 1000;  // duration of a step with one stream
  int streams = 3;
  std::vector<int32_t> input =
      std::vector<int32_t>(200, 7);  // of the requests that arrive meanwhile
};

struct Outcome {
  int64_t longest_us = 0;      // longest step while streams run and inputs arrive
  int64_t steps_to_start = 0;  // until the first input was processed
  int64_t alone_steps = 0;     // the same without streams
};

DecodingOptions Exactly(int tokens) {
  DecodingOptions options;
  options.max_new_tokens = options.min_new_tokens = tokens;
  return options;
}

// Starts traffic.streams streams of 400 output tokens each. After ten steps it submits three
// requests, one after the other: each has the input `traffic.input` and one output token, and is
// submitted when the one before has finished.
Outcome Run(Traffic traffic) {
  int64_t now = 0;
  traffic.fake.clock_us = &now;
  traffic.fake.decode_us = traffic.decode_us;
  traffic.fake.limits.cache_pages = 1000;
  ThreadPool pool(1);
  FakeModel model(traffic.fake, &pool);
  EngineLimits limits;
  limits.prefill_share = 0.5;
  auto engine = Engine::Create(&model, nullptr, limits, [&now] { return now; });
  REQUIRE(engine.ok());
  std::vector<Request> streams;
  for (int i = 0; i < traffic.streams; ++i) {
    streams.push_back(GenerateRequest(model, {4, 5, 6 + i}, Exactly(400)));
    REQUIRE((*engine)->Submit(streams.back()).ok());
  }
  for (int i = 0; i < 10; ++i) (*engine)->Step();
  Outcome outcome;
  const auto sink = [](const Request& r) { return static_cast<RecordingSink*>(r.sink.get()); };
  for (int i = 0; i < 3; ++i) {
    const Request request = GenerateRequest(model, traffic.input, Exactly(1));
    REQUIRE((*engine)->Submit(request).ok());
    for (int64_t step = 1; sink(request)->done_calls == 0; ++step) {
      REQUIRE(step < 380);
      const int64_t begin = now;
      (*engine)->Step();
      outcome.longest_us = std::max(outcome.longest_us, now - begin);
      if (i == 0) outcome.steps_to_start = step;
    }
  }
  for (const Request& stream : streams) CHECK(sink(stream)->done_calls == 0);
  RunAll(engine->get());
  const Request last = GenerateRequest(model, traffic.input, Exactly(1));
  REQUIRE((*engine)->Submit(last).ok());
  outcome.alone_steps = RunAll(engine->get());
  CHECK(model.errors.empty());
  return outcome;
}

TEST_CASE("pace: streams keep their pace during long encodings", "[pace]") {
  Traffic traffic;
  traffic.fake.encode_us = 25;   // 200 tokens through 2 layers: 10 ms
  traffic.fake.project_us = 10;  // and 2 ms for cross-attention keys and values
  const Outcome outcome = Run(traffic);
  CHECK(outcome.longest_us <= 1600);    // 1000 us of decoding plus half of that
  CHECK(outcome.steps_to_start >= 20);  // 12 ms at 500 us per step
  CHECK(outcome.steps_to_start <= 40);
  CHECK(outcome.alone_steps <= 5);
}

TEST_CASE("pace: streams keep their pace during long prefills", "[pace]") {
  Traffic traffic;
  traffic.fake.causal = true;
  traffic.fake.token_us = 50;  // 200 tokens: 10 ms
  const Outcome outcome = Run(traffic);
  CHECK(outcome.longest_us <= 1850);    // 1000 us + 3 streams of 50 us, plus half of that
  CHECK(outcome.steps_to_start >= 14);  // at most 14 tokens per step
  CHECK(outcome.steps_to_start <= 40);
  CHECK(outcome.alone_steps <= 7);  // the model's limit is 48 tokens per step
}

TEST_CASE("pace: cached inputs are projected in blocks", "[pace]") {
  int64_t now = 0;
  FakeOptions fake;
  fake.clock_us = &now;
  fake.decode_us = 1000;
  fake.project_us = 10;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  EngineLimits limits;
  limits.prefill_share = 0.5;
  limits.encoder_cache_bytes = 1 << 20;
  auto engine = Engine::Create(&model, nullptr, limits, [&now] { return now; });
  const std::vector<int32_t> input(250, 9);
  const Request first = GenerateRequest(model, input, Exactly(3));
  REQUIRE((*engine)->Submit(first).ok());
  RunAll(engine->get());
  const Request stream = GenerateRequest(model, {4}, Exactly(60));
  REQUIRE((*engine)->Submit(stream).ok());
  for (int i = 0; i < 10; ++i) (*engine)->Step();
  const Request again = GenerateRequest(model, input, Exactly(3));
  REQUIRE((*engine)->Submit(again).ok());
  int64_t longest = 0;
  for (int i = 0; i < 30; ++i) {
    const int64_t begin = now;
    (*engine)->Step();
    longest = std::max(longest, now - begin);
  }
  CHECK(longest <= 1600);
  const auto& sink = static_cast<const RecordingSink&>(*again.sink);
  REQUIRE(sink.done_calls == 1);
  CHECK(sink.result.cached_tokens == 250);
  CHECK(SameResult(sink.result, static_cast<const RecordingSink&>(*first.sink).result));
  CHECK(model.errors.empty());
}

}  // namespace
}  // namespace quintet
