#include "engine/engine.h"

#include <limits>
#include <random>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/reference_search.h"

namespace quintet {
namespace {

LogitsFunction LogitsAfter(const FakeModel& model, const std::vector<int32_t>& source) {
  return [&model, source](const std::vector<int32_t>& history) {
    return model.LogitsOf(FakeModel::StateOf(source, history));
  };
}

DecodingOptions RandomOptions(std::mt19937* random, int64_t vocab) {
  const auto chance = [random](int of) { return (*random)() % of == 0; };
  DecodingOptions o;
  o.max_new_tokens = 1 + (*random)() % 12;
  if (chance(4)) o.min_new_tokens = (*random)() % (o.max_new_tokens + 1);
  if (chance(2)) o.num_beams = 1 + (*random)() % 6;
  o.num_return_sequences = 1 + (*random)() % o.num_beams;
  if (chance(3)) o.length_penalty = static_cast<double>((*random)() % 5) - 2.0;
  o.early_stopping = static_cast<EarlyStopping>((*random)() % 3);
  if (chance(4)) o.repetition_penalty = 1.3f;
  if (chance(4)) o.no_repeat_ngram_size = 1 + (*random)() % 3;
  if (chance(4)) o.suppress_tokens = RandomTokens(random, 3, vocab);
  if (chance(4)) o.begin_suppress_tokens = RandomTokens(random, 3, vocab);
  if (chance(6)) o.forced_eos_token_ids = {1};
  if (chance(6)) o.forced_bos_token_id = 5;
  if (chance(4)) o.bad_words_ids = {{4}, {7, 8}, RandomTokens(random, 3, vocab)};
  if (chance(3)) o.eos_token_ids = {1, 2, 9};
  return o;
}

void CheckAgainstReference(bool causal, int seed) {
  FakeOptions fake;
  fake.causal = causal;
  fake.eos_bonus = 3.0f;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  REQUIRE(engine.ok());
  std::mt19937 random(seed);
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    Request request = GenerateRequest(model, RandomTokens(&random, 1 + random() % 20, 40),
                                      RandomOptions(&random, 40));
    if (!causal && random() % 3 == 0) request.decoding.prompt = {0, 6, 7};
    requests.push_back(request);
    const auto id = (*engine)->Submit(request);
    INFO(id.status().message());
    REQUIRE(id.ok());
  }
  RunAll(engine->get());
  CHECK(model.errors == std::vector<std::string>());
  for (const Request& request : requests) {
    const auto& sink = static_cast<const RecordingSink&>(*request.sink);
    REQUIRE(sink.done_calls == 1);
    REQUIRE(sink.status.ok());
    const LogitsFunction logits =
        LogitsAfter(model, causal ? std::vector<int32_t>() : request.input);
    if (request.decoding.num_beams == 1) {
      REQUIRE(sink.result.sequences.size() == 1);
      CHECK(sink.result.sequences[0].token_ids == ReferenceGreedy(request.decoding, logits));
      continue;
    }
    const auto expected = ReferenceBeams(request.decoding, logits);
    REQUIRE(sink.result.sequences.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CHECK(sink.result.sequences[i].token_ids == expected[i].tokens);
      CHECK(sink.result.sequences[i].score == Approx(expected[i].score).epsilon(1e-5));
    }
  }
  const EngineCounters counters = (*engine)->counters();
  CHECK(counters.finished == 60);
  CHECK(counters.pages_used == 0);
  CHECK(counters.running + counters.waiting == 0);
}

struct SequencesPerStep : StepObserver {
  void OnStep(const StepReport& report) override { sequences.push_back(report.sequences); }
  std::vector<int64_t> sequences;
};

// Runs ten requests of 4 input tokens each and returns the number of sequences in each decoder
// step. An encoder batch can hold two of the requests, a decoder step six.
std::vector<int64_t> SequencesOfTenRequests(int64_t admission_sequences) {
  FakeOptions fake;
  fake.limits.max_encode_tokens = 8;
  fake.limits.max_step_sequences = 6;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  SequencesPerStep steps;
  EngineLimits limits;
  limits.admission_sequences = admission_sequences;
  limits.encode_before_decoding = admission_sequences > 1;
  auto engine = Engine::Create(&model, nullptr, limits, MonotonicMicros, &steps);
  REQUIRE(engine.ok());
  DecodingOptions options;
  options.max_new_tokens = options.min_new_tokens = 8;
  for (int i = 0; i < 10; ++i) {
    REQUIRE((*engine)->Submit(GenerateRequest(model, {4, 5, 6, 7}, options)).ok());
  }
  RunAll(engine->get());
  CHECK(model.errors == std::vector<std::string>());
  return steps.sequences;
}

TEST_CASE("requests that are admitted together are all encoded before the next decoder step") {
  CHECK(SequencesOfTenRequests(1).front() == 2);
  const std::vector<int64_t> steps = SequencesOfTenRequests(3);
  CHECK(steps == std::vector<int64_t>{6, 6, 6, 6, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4, 4, 4});
}

TEST_CASE("requests wait for several free sequences, but not for more than the limit of steps") {
  // Two requests run, one for 12 tokens and one for 3. A third request, for 3 tokens, waits.
  const auto sequences_per_step = [](int64_t max_delay) {
    FakeOptions fake;
    fake.limits.max_step_sequences = 2;
    ThreadPool pool(1);
    FakeModel model(fake, &pool);
    SequencesPerStep steps;
    EngineLimits limits;
    limits.admission_sequences = 2;
    limits.max_admission_delay_steps = max_delay;
    auto engine = Engine::Create(&model, nullptr, limits, MonotonicMicros, &steps);
    REQUIRE(engine.ok());
    for (const int tokens : {12, 3, 3}) {
      DecodingOptions options;
      options.max_new_tokens = options.min_new_tokens = tokens;
      REQUIRE((*engine)->Submit(GenerateRequest(model, {4, 5, 6, 7}, options)).ok());
    }
    RunAll(engine->get());
    return steps.sequences;
  };
  const int64_t unlimited = std::numeric_limits<int64_t>::max();
  CHECK(sequences_per_step(unlimited) ==
        std::vector<int64_t>{2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(sequences_per_step(0) == std::vector<int64_t>{2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1});
  CHECK(sequences_per_step(4) == std::vector<int64_t>{2, 2, 2, 1, 1, 2, 2, 2, 1, 1, 1, 1});
}

TEST_CASE("requests that are never decoded do not delay those that are") {
  FakeOptions fake;
  fake.limits.max_encode_tokens = 8;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  EngineLimits limits;
  limits.admission_sequences = 3;
  limits.encode_before_decoding = true;
  auto engine = Engine::Create(&model, nullptr, limits);
  REQUIRE(engine.ok());
  DecodingOptions options;
  options.max_new_tokens = options.min_new_tokens = 8;
  const Request generate = GenerateRequest(model, {4, 5, 6, 7}, options);
  REQUIRE((*engine)->Submit(generate).ok());
  const auto& sink = static_cast<const RecordingSink&>(*generate.sink);
  int steps = 0;
  for (; sink.done_calls == 0 && steps < 100; ++steps) {
    while ((*engine)->counters().waiting < 4) {
      Request encode = GenerateRequest(model, {4, 5, 6, 7}, {});
      encode.kind = RequestKind::kEncode;
      encode.decoding = {};
      REQUIRE((*engine)->Submit(encode).ok());
    }
    (*engine)->Step();
  }
  CHECK(steps < 20);
  RunAll(engine->get());
}

TEST_CASE("mixed greedy and beam requests give the reference's sequences, with an encoder") {
  for (int seed = 0; seed < 10; ++seed) CheckAgainstReference(false, seed);
}

TEST_CASE("mixed greedy and beam requests give the reference's sequences, causal") {
  for (int seed = 100; seed < 110; ++seed) CheckAgainstReference(true, seed);
}

}  // namespace
}  // namespace quintet
