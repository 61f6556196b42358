// Tests the engine under random traffic: results must not depend on which requests share a step,
// and no request, page or token may be lost.
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

std::unique_ptr<Tokenizer> LetterTokenizer(int64_t vocab) {
  std::vector<std::string> pieces{"", "", ""};
  for (int64_t i = 3; i < vocab; ++i) {
    pieces.push_back(i % 5 == 0 ? " " : std::string(1 + i % 2, static_cast<char>('a' + i % 7)));
  }
  return MakeBytesTokenizer(pieces);
}

Request RandomGenerate(std::mt19937* random, const Model& model) {
  const int64_t vocab = model.config().vocab;
  const auto chance = [random](int of) { return (*random)() % of == 0; };
  DecodingOptions o;
  o.max_new_tokens = 1 + (*random)() % 14;
  if (chance(2)) o.num_beams = 1 + (*random)() % 7;
  if (chance(2)) o.do_sample = true;
  o.num_return_sequences = o.num_beams > 1 ? 1 + (*random)() % o.num_beams
                           : o.do_sample   ? 1 + (*random)() % 4
                                           : 1;
  o.seed = (*random)();
  if (chance(2)) o.warp.top_k = 1 + (*random)() % 50;
  if (chance(3)) o.warp.top_p = 0.7f;
  if (chance(3)) o.warp.temperature = 0.6f;
  if (chance(4)) o.warp.typical_p = 0.8f;
  if (chance(4)) o.warp.min_p = 0.05f;
  o.early_stopping = static_cast<EarlyStopping>((*random)() % 3);
  if (chance(4)) o.repetition_penalty = 1.4f;
  if (chance(4)) o.no_repeat_ngram_size = 2;
  if (chance(4)) o.min_new_tokens = (*random)() % (o.max_new_tokens + 1);
  if (chance(6)) o.bad_words_ids = {{5}, {7, 8}, RandomTokens(random, 2, vocab)};
  if (chance(6)) o.suppress_tokens = RandomTokens(random, 1 + (*random)() % 9, vocab);
  if (chance(6)) o.begin_suppress_tokens = RandomTokens(random, 1 + (*random)() % 9, vocab);
  if (chance(8)) o.forced_bos_token_id = static_cast<int32_t>((*random)() % vocab);
  if (chance(8)) o.forced_eos_token_ids = {1};
  if (chance(2)) o.logprobs = true;
  if (o.logprobs && chance(2)) o.top_logprobs = 1 + (*random)() % 20;
  if (chance(3)) o.stop = {"ab", "g d"};
  if (chance(4)) o.include_stop = true;
  if (chance(4)) o.echo = true;
  Request request = GenerateRequest(model, RandomTokens(random, 1 + (*random)() % 30, vocab), o);
  if (model.config().has_encoder() && chance(3)) request.decoding.prompt = {0, 7, 8, 9};
  request.stream = chance(2);
  return request;
}

Request RandomRequest(std::mt19937* random, const Model& model) {
  const auto chance = [random](int of) { return (*random)() % of == 0; };
  Request request = RandomGenerate(random, model);
  const int kind = (*random)() % 5;
  if (kind == 0) {
    request.kind = RequestKind::kEncode;
    request.pooling = static_cast<Pooling>((*random)() % 4);
  } else if (kind == 1) {
    request.kind = RequestKind::kScore;
    request.decoding = DecodingOptions();
    for (int i = 1 + (*random)() % 4; i > 0; --i) {
      request.targets.push_back(RandomTokens(random, 1 + (*random)() % 9, model.config().vocab));
    }
    request.top_logprobs = (*random)() % 3;
    if (!model.config().has_encoder()) {
      request.prefix_lm = chance(3);
      if (!request.prefix_lm && chance(3)) request.sliding_window = 1 + (*random)() % 12;
    }
  }
  if (kind < 2) request.stream = false;
  request.priority = static_cast<Priority>((*random)() % 3);
  const std::span<const AdapterHandle> adapters = model.adapters();
  const size_t adapter = (*random)() % (adapters.size() + 1);
  if (adapter < adapters.size()) request.adapter = adapters[adapter];
  return request;
}

const RecordingSink& SinkOf(const Request& request) {
  return static_cast<const RecordingSink&>(*request.sink);
}

void CheckStream(const Request& request, const RecordingSink& sink) {
  CHECK(sink.tokens_after_done == 0);
  const bool beams = request.decoding.num_beams > 1;
  if (!request.stream || (beams && request.decoding.num_return_sequences > 1)) {
    CHECK(sink.streamed_text.empty());
    return;
  }
  for (size_t i = 0; i < sink.result.sequences.size(); ++i) {
    REQUIRE(i < sink.streamed_text.size());
    CHECK(sink.streamed_text[i] == sink.result.sequences[i].text);
    CHECK(sink.streamed_ids[i] == sink.result.sequences[i].token_ids);
  }
}

void CheckAddsUp(const EngineCounters& c) {
  REQUIRE(c.accepted == c.finished + c.cancelled + c.failed + c.running + c.waiting);
  REQUIRE((c.running >= 0 && c.waiting >= 0 && c.pages_used >= 0));
}

// Returns a generate request with the input and the stop strings of `request`, but otherwise with
// plain greedy decoding.
Request Greedy(Request request, const Model& model) {
  DecodingOptions options;
  options.prompt = model.config().has_encoder() ? std::vector<int32_t>{0} : request.input;
  options.eos_token_ids = {1};
  options.max_new_tokens = 1 + request.decoding.max_new_tokens;
  options.min_new_tokens = request.decoding.min_new_tokens;  // takes effect only at first
  options.stop = request.decoding.stop;
  request.decoding = options;
  request.kind = RequestKind::kGenerate;
  request.targets.clear();
  request.prefix_lm = false;
  request.sliding_window = 0;
  return request;
}

// Returns `request` as a generate request without beams and log-probabilities. The device can then
// choose its tokens without the host.
Request Independent(Request request, const Model& model) {
  if (request.kind != RequestKind::kGenerate) return Greedy(request, model);
  DecodingOptions& options = request.decoding;
  options.num_beams = 1;
  if (!options.do_sample) options.num_return_sequences = 1;
  options.logprobs = false;
  options.top_logprobs = 0;
  options.max_new_tokens += 5;
  return request;
}

// Returns `request` with a random number of beams, and without log-probabilities and stop strings.
// The device can then advance the beams without the host.
Request BeamsAhead(Request request, const Model& model, std::mt19937* random) {
  request = Independent(request, model);
  DecodingOptions& options = request.decoding;
  options.stop.clear();
  options.max_new_tokens = std::min(options.max_new_tokens, 20);
  options.min_new_tokens = std::min(options.min_new_tokens, 20);
  options.num_beams = 2 + static_cast<int32_t>((*random)() % 6);
  options.num_return_sequences = 1 + static_cast<int32_t>((*random)() % options.num_beams);
  return request;
}

struct TraceOptions {
  FakeOptions fake{.adapters = 3};
  EngineLimits limits;
  int requests = 150;
  int threads = 1;
  bool greedy = false;       // most requests are plain greedy ones
  bool independent = false;  // most have no beams and no log-probabilities
  bool beams = false;        // of those most have beams
};

void RunTrace(const TraceOptions& trace, int seed) {
  std::mt19937 random(seed);
  ThreadPool pool(trace.threads);
  int64_t now = 0;
  FakeOptions timed = trace.fake;
  timed.clock_us = &now;
  FakeModel model(timed, &pool);
  const auto tokenizer = LetterTokenizer(trace.fake.vocab);
  auto engine = Engine::Create(&model, tokenizer.get(), trace.limits, [&now] { return now; });
  REQUIRE(engine.ok());
  std::vector<Request> requests;
  std::map<size_t, RequestId> ids;
  std::vector<size_t> cancelled, hurried;
  while (static_cast<int>(requests.size()) < trace.requests) {
    now += 1000;
    for (int arrivals = random() % 4; arrivals > 0; --arrivals) {
      Request request = RandomRequest(&random, model);
      if (trace.greedy && random() % 8 != 0) request = Greedy(request, model);
      if (trace.independent && random() % 16 != 0) request = Independent(request, model);
      if (trace.beams && random() % 4 != 0) request = BeamsAhead(request, model, &random);
      if (random() % 15 == 0) request.deadline_us = now + random() % 8000;
      const auto id = (*engine)->Submit(request);
      if (!id.ok()) {
        INFO(id.status());
        REQUIRE(id.status().code() == absl::StatusCode::kResourceExhausted);
        continue;
      }
      if (request.deadline_us < 1'000'000'000) hurried.push_back(requests.size());
      ids[requests.size()] = *id;
      requests.push_back(request);
    }
    if (random() % 6 == 0 && !requests.empty()) {
      const size_t victim = random() % requests.size();
      (*engine)->Cancel(ids[victim]);
      cancelled.push_back(victim);
    }
    CheckAddsUp((*engine)->counters());
    (*engine)->Step();
    // A request that was cancelled before the step must have ended after the step.
    if (!cancelled.empty()) REQUIRE(SinkOf(requests[cancelled.back()]).done_calls == 1);
    CheckAddsUp((*engine)->counters());
  }
  RunAll(engine->get());
  CHECK(model.errors == std::vector<std::string>());
  if (trace.limits.async_scheduling.value_or(false)) CHECK(model.async_scheduling_tokens > 50);
  if (trace.beams) CHECK(model.moves > 50);
  const EngineCounters counters = (*engine)->counters();
  CHECK(counters.accepted == static_cast<int64_t>(requests.size()));
  CHECK(counters.running == 0);
  CHECK(counters.waiting == 0);
  CHECK(counters.pages_used == 0);
  CheckAddsUp(counters);

  FakeOptions roomy = trace.fake;  // alone, with other limits: results must not depend on them
  roomy.limits.max_step_tokens = 64;
  int finished = 0;
  for (const Request& request : requests) {
    const RecordingSink& sink = SinkOf(request);
    REQUIRE(sink.done_calls == 1);
    if (!sink.status.ok()) continue;
    ++finished;
    Request alone = request;
    alone.deadline_us = std::numeric_limits<int64_t>::max();
    REQUIRE(SameResult(sink.result, RunAlone(roomy, alone, tokenizer.get())));
    CheckStream(request, sink);
  }
  CHECK(finished == counters.finished);
  CHECK(finished > trace.requests / 2);
}

TEST_CASE("random traffic: every request has the result that it has alone") {
  TraceOptions trace;
  trace.fake.eos_bonus = 2.0f;
  for (int seed = 0; seed < 6; ++seed) {
    trace.fake.causal = seed % 2 == 1;
    RunTrace(trace, seed);
  }
}

TEST_CASE(
    "random traffic: results are as alone with slow encoding, short queues and tight memory") {
  TraceOptions trace;
  trace.fake.eos_bonus = 1.0f;
  trace.fake.limits.max_encode_tokens = 60;
  trace.fake.limits.max_step_tokens = 16;
  trace.fake.limits.max_step_sequences = 12;
  trace.fake.limits.cache_pages = 60;
  trace.fake.encode_us = 20;
  trace.fake.project_us = 3;
  trace.fake.decode_us = 400;
  trace.fake.token_us = 30;
  trace.limits.prefill_share = 0.5;
  trace.limits.max_queue_requests = 6;
  trace.limits.max_queue_tokens = 120;
  trace.limits.encoder_cache_bytes = 20000;
  trace.limits.admission_sequences = 5;
  trace.limits.max_admission_delay_steps = 3;
  trace.fake.adapters = 6;
  trace.fake.adapter_slots = 2;
  for (int seed = 10; seed < 16; ++seed) {
    trace.fake.causal = seed % 2 == 1;
    RunTrace(trace, seed);
  }
}

TEST_CASE("random traffic: results are as alone with async scheduling") {
  TraceOptions trace;
  trace.fake.eos_bonus = 1.0f;
  trace.limits.async_scheduling = true;
  trace.greedy = true;
  for (int seed = 30; seed < 36; ++seed) {
    trace.fake.causal = seed % 2 == 1;
    RunTrace(trace, seed);
  }
}

TEST_CASE("random traffic: results are as alone with async scheduling, sampling and processors") {
  TraceOptions trace;
  trace.limits.async_scheduling = true;
  trace.independent = true;
  for (int seed = 50; seed < 58; ++seed) {
    trace.fake.causal = seed % 2 == 1;
    trace.fake.eos_bonus = seed % 4 < 2 ? 0.0f : 1.0f;
    RunTrace(trace, seed);
  }
}

TEST_CASE("random traffic: results are as alone with async scheduling and beams") {
  TraceOptions trace;
  trace.limits.async_scheduling = true;
  trace.independent = trace.beams = true;
  for (int seed = 70; seed < 80; ++seed) {
    trace.limits.admission_sequences = seed % 3 == 0 ? 1 : 1000;  // 1000: all that may run
    trace.limits.encode_before_decoding = seed % 3 == 1;
    trace.fake.causal = seed % 2 == 1;
    trace.fake.eos_bonus = seed % 4 < 2 ? 0.0f : 2.0f;
    RunTrace(trace, seed);
  }
}

TEST_CASE("random traffic: results are as alone on several threads") {
  TraceOptions trace;
  trace.threads = 3;
  trace.requests = 60;
  RunTrace(trace, 20);
}

TEST_CASE("a deadline ends a request in the queue without any work, and while decoding") {
  FakeOptions fake;
  fake.limits.max_step_sequences = 1;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  int64_t now = 1000;
  auto engine = Engine::Create(&model, nullptr, EngineLimits(), [&now] { return now; });
  DecodingOptions options;
  options.max_new_tokens = options.min_new_tokens = 20;
  Request running = GenerateRequest(model, {4, 5}, options);
  running.deadline_us = 5000;
  Request waiting = GenerateRequest(model, {6, 7}, options);
  waiting.deadline_us = 3000;
  REQUIRE((*engine)->Submit(running).ok());
  REQUIRE((*engine)->Submit(waiting).ok());
  (*engine)->Step();
  CHECK(SinkOf(waiting).done_calls == 0);
  now = 3000;
  (*engine)->Step();
  CHECK(SinkOf(waiting).status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(model.encode_batches == 1);
  CHECK(SinkOf(running).done_calls == 0);
  now = 5000;
  (*engine)->Step();
  CHECK(SinkOf(running).status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK((*engine)->counters().pages_used == 0);
  CHECK((*engine)->counters().failed == 2);
}

TEST_CASE("a request cancelled during encoding does not affect the others of its batch") {
  int64_t now = 0;
  FakeOptions fake;
  fake.clock_us = &now;
  fake.encode_us = 10;
  fake.decode_us = 60;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  EngineLimits limits;
  limits.prefill_share = 0.5;
  auto engine = Engine::Create(&model, nullptr, limits, [&now] { return now; });
  DecodingOptions options;
  options.max_new_tokens = options.min_new_tokens = 12;
  const Request stream = GenerateRequest(model, {4}, options);
  REQUIRE((*engine)->Submit(stream).ok());
  (*engine)->Step();
  const Request a = GenerateRequest(model, {4, 5, 6, 7}, options);
  const Request b = GenerateRequest(model, {8, 9, 10, 11}, options);
  const auto id = (*engine)->Submit(a);
  REQUIRE((*engine)->Submit(b).ok());
  (*engine)->Step();
  CHECK(model.encode_batches == 2);
  (*engine)->Cancel(*id);
  (*engine)->Cancel(12345);  // unknown id
  RunAll(engine->get());
  CHECK(SinkOf(a).status.code() == absl::StatusCode::kCancelled);
  CHECK(SameResult(SinkOf(b).result, RunAlone(fake, b, nullptr)));
  CHECK(model.errors.empty());
  CHECK((*engine)->counters().cancelled == 1);
}

TEST_CASE("the destructor of an engine ends its unfinished requests") {
  FakeOptions fake;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  const Request running = GenerateRequest(model, {4, 5});
  const Request waiting = GenerateRequest(model, {6, 7});
  {
    auto engine = Engine::Create(&model, nullptr, EngineLimits());
    REQUIRE((*engine)->Submit(running).ok());
    (*engine)->Step();
    REQUIRE((*engine)->Submit(waiting).ok());
  }
  CHECK(SinkOf(running).status.code() == absl::StatusCode::kUnavailable);
  CHECK(SinkOf(waiting).status.code() == absl::StatusCode::kUnavailable);
  CHECK(SinkOf(waiting).done_calls == 1);
}

TEST_CASE(
    "the queue is bounded by requests and tokens: a large one is refused, a small one admitted") {
  FakeOptions fake;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  EngineLimits limits;
  limits.max_queue_requests = 3;
  limits.max_queue_tokens = 50;
  auto engine = Engine::Create(&model, nullptr, limits);
  const auto submit = [&](int64_t tokens) {
    return (*engine)
        ->Submit(GenerateRequest(model, std::vector<int32_t>(tokens, 5)))
        .status()
        .code();
  };
  CHECK(submit(40) == absl::StatusCode::kOk);
  CHECK(submit(20) == absl::StatusCode::kResourceExhausted);
  CHECK(submit(51) == absl::StatusCode::kInvalidArgument);  // never fits
  CHECK(submit(10) == absl::StatusCode::kOk);
  CHECK(submit(1) == absl::StatusCode::kResourceExhausted);
  (*engine)->Step();  // both are admitted
  CHECK(submit(1) == absl::StatusCode::kOk);
  CHECK(submit(1) == absl::StatusCode::kOk);
  CHECK(submit(1) == absl::StatusCode::kOk);
  CHECK(submit(1) == absl::StatusCode::kResourceExhausted);
  RunAll(engine->get());
  CHECK((*engine)->counters().finished == 5);
}

TEST_CASE("a request's queue place is free when OnStart is called") {
  struct StartSink : RecordingSink {
    void OnStart() override { waiting = engine->counters().waiting; }
    Engine* engine = nullptr;
    int64_t waiting = -1;
  };
  ThreadPool pool(1);
  FakeModel model(FakeOptions(), &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  Request request = GenerateRequest(model, {5, 6, 7});
  auto sink = std::make_shared<StartSink>();
  sink->engine = engine->get();
  request.sink = sink;
  REQUIRE((*engine)->Submit(std::move(request)).ok());
  CHECK((*engine)->counters().waiting == 1);
  RunAll(engine->get());
  CHECK(sink->waiting == 0);
  CHECK(sink->done_calls == 1);
}

TEST_CASE("invalid limits are refused") {
  FakeOptions fake;
  ThreadPool pool(1);
  FakeModel model(fake, &pool);
  EngineLimits limits;
  limits.max_running_sequences = 0;
  CHECK(Engine::Create(&model, nullptr, limits).status().code() ==
        absl::StatusCode::kInvalidArgument);
  limits = EngineLimits();
  limits.admission_sequences = 0;
  CHECK_FALSE(Engine::Create(&model, nullptr, limits).ok());
  limits = EngineLimits();
  limits.max_admission_delay_steps = -1;
  CHECK_FALSE(Engine::Create(&model, nullptr, limits).ok());
  limits = EngineLimits();
  limits.prefill_share = -1;
  CHECK_FALSE(Engine::Create(&model, nullptr, limits).ok());
  limits.prefill_share = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(Engine::Create(&model, nullptr, limits).ok());
}

TEST_CASE("concurrent Submit and Cancel: every request ends exactly once and counters add up") {
  FakeOptions fake;
  fake.eos_bonus = 2.0f;
  ThreadPool pool(2);
  FakeModel model(fake, &pool);
  const auto tokenizer = LetterTokenizer(fake.vocab);
  auto created = Engine::Create(&model, tokenizer.get(), EngineLimits());
  REQUIRE(created.ok());
  Engine* engine = created->get();
  std::atomic<bool> submitting{true};
  std::atomic<int> watching{0};
  std::thread stepper([&] {
    while (submitting || engine->Step()) {
      engine->WaitForWork(1000);
      engine->Step();
    }
  });
  std::vector<std::vector<Request>> accepted(4);
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int i = 0; i < 150; ++i) {
        Request request = RandomRequest(&random, model);
        const auto id = engine->Submit(request);
        if (!id.ok()) continue;
        accepted[c].push_back(request);
        if (random() % 4 == 0) engine->Cancel(*id);
        const EngineCounters counters = engine->counters();
        watching += counters.accepted != counters.finished + counters.cancelled + counters.failed +
                                             counters.running + counters.waiting;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  submitting = false;
  stepper.join();
  CHECK(watching == 0);
  int64_t ended = 0;
  for (const auto& requests : accepted) {
    for (const Request& request : requests) {
      CHECK(SinkOf(request).done_calls == 1);
      ended += SinkOf(request).status.ok();
    }
  }
  CHECK(model.errors == std::vector<std::string>());
  CHECK(engine->counters().finished == ended);
  CHECK(engine->counters().running + engine->counters().waiting == 0);
  CHECK(engine->counters().pages_used == 0);
  CHECK(ended > 100);
}

}  // namespace
}  // namespace quintet
