// Who takes part in steps that are queued before the tokens of the one before are known.
#include "catch2/catch.hpp"
#include "engine/engine.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// How many tokens the model's steps took from where the device had left them, when a second request
// comes while a first one, of 20 tokens, is being decoded.
int64_t TakenFromDevice(DecodingOptions second, bool causal = false) {
  ThreadPool pool(1);
  FakeModel model({.causal = causal, .eos_bonus = -1000.0f}, &pool);
  auto engine = Engine::Create(&model, nullptr, {.async_scheduling = true});
  REQUIRE(engine.ok());
  DecodingOptions options;
  options.max_new_tokens = 20;
  const Request request = GenerateRequest(model, {4, 5, 6}, options);
  REQUIRE((*engine)->Submit(request).ok());
  for (int step = 0; step < 5; ++step) (*engine)->Step();
  second.max_new_tokens = 8;
  const Request other = GenerateRequest(model, {7, 8}, second);
  REQUIRE((*engine)->Submit(other).ok());
  RunAll(engine->get());
  CHECK(model.errors == std::vector<std::string>());
  for (const Request& each : {request, other}) {
    const auto& sink = static_cast<const RecordingSink&>(*each.sink);
    REQUIRE(sink.status.ok());
    CHECK(SameResult(sink.result,
                     RunAlone({.causal = causal, .eos_bonus = -1000.0f}, each, nullptr)));
  }
  return model.chosen_tokens;
}

TEST_CASE("a sequence joins the steps queued ahead with its first one") {
  // All but the first token that each reads.
  CHECK(TakenFromDevice({}) == 19 + 7);
  DecodingOptions sampled;
  sampled.do_sample = true;
  sampled.seed = 3;
  CHECK(TakenFromDevice(sampled) == 19 + 7);
}

TEST_CASE("after a step in which several sequences begin as one row, one waits for the host") {
  DecodingOptions samples;
  samples.do_sample = true;
  samples.num_return_sequences = 3;
  CHECK(TakenFromDevice(samples) == 19 - 1 + 3 * (7 - 1));
  DecodingOptions beams;
  beams.num_beams = 3;
  CHECK(TakenFromDevice(beams) == 19 - 1 + 3 * (7 - 1));
}

TEST_CASE("a step that reads a longer prompt waits for the host") {
  CHECK(TakenFromDevice({}, /*causal=*/true) == 19 - 1 + 7);
}

}  // namespace
}  // namespace quintet
