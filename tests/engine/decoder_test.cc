// Tests which sequences join a step that is enqueued before the host knows the tokens of the
// previous step.
#include "engine/engine.h"
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// Decodes a request for 20 tokens. While it runs, submits another request for 8 tokens with the
// options `second`. Returns the number of input tokens that the model took from device memory.
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
  return model.async_scheduling_tokens;
}

TEST_CASE("async scheduling: a request joins with the last token of its prompt") {
  // The decoder prompt of each request is one token, which comes from the host. All later input
  // tokens of the decoder come from device memory.
  CHECK(TakenFromDevice({}) == 19 + 7);
  DecodingOptions sampled;
  sampled.do_sample = true;
  sampled.seed = 3;
  CHECK(TakenFromDevice(sampled) == 19 + 7);
}

TEST_CASE("async scheduling: the step after a prompt fans out is synchronous") {
  DecodingOptions samples;
  samples.do_sample = true;
  samples.num_return_sequences = 3;
  CHECK(TakenFromDevice(samples) == 19 - 1 + 3 * (7 - 1));
  DecodingOptions beams;
  beams.num_beams = 3;
  beams.do_sample = true;
  CHECK(TakenFromDevice(beams) == 19 - 1 + 3 * (7 - 1));
}

TEST_CASE("async scheduling: all beams join together when the prompt has one token") {
  DecodingOptions beams;
  beams.num_beams = 3;
  CHECK(TakenFromDevice(beams) == 19 + 3 * 7);
  // Only token 9 is possible in the first step, so the other two beams start as copies of beam 0.
  beams.forced_bos_token_id = 9;
  CHECK(TakenFromDevice(beams) == 19 + 3 * 7);
}

TEST_CASE("async scheduling: a step with prefill of several tokens is synchronous") {
  CHECK(TakenFromDevice({}, /*causal=*/true) == 19 - 1 + 7);
}

}  // namespace
}  // namespace quintet
