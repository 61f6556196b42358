// A failed allocation ends one request. A set of mixed requests runs repeatedly on small models of
// every kind. In each run a different allocation fails (operator new or mmap): in Submit, in a step
// of the engine, while text is decoded or a result is built, or in the model. Only the request that
// made the allocation ends, with OutOfMemory(); if the allocation serves a whole batch, the
// requests of that batch end. All other results are bit-identical to a run without failures, no
// memory or KV cache page stays reserved, and the engine keeps working. The tests let no allocation
// of a sink fail, because sinks belong to the server and not to the engine.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/out_of_memory.h"
#include "tests/allocation/injection.h"
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

constexpr char kCases[] = QUINTET_SOURCE_DIR "/tests/golden/cases/";

class ExemptSink : public RecordingSink {
 public:
  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override {
    const ExemptAllocations exempt;
    RecordingSink::OnTokens(index, ids, text);
  }
  void OnDone(absl::StatusOr<Result> result) override {
    const ExemptAllocations exempt;
    RecordingSink::OnDone(std::move(result));
  }
};

struct Outcome {
  absl::Status submitted;
  std::shared_ptr<ExemptSink> sink;

  bool ok() const { return submitted.ok() && sink->status.ok(); }
};

struct Failures {
  int64_t none = 0, one = 0, batch = 0;
};

std::unique_ptr<Tokenizer> MakeTokenizer() {
  std::vector<std::string> pieces(256);
  for (int i = 3; i < 256; ++i) {
    pieces[i] = {static_cast<char>('a' + i % 26), static_cast<char>('a' + i / 26)};
  }
  return MakeBytesTokenizer(std::move(pieces));
}

// One model and the requests to run on it.
class AllocationRun {
 public:
  AllocationRun(const std::string& name, int threads, EngineLimits limits = {})
      : pool_(threads), tokenizer_(MakeTokenizer()), limits_(limits) {
    LoadOptions options;
    options.limits = {.max_encode_tokens = 1024, .cache_pages = 512};
    absl::StatusOr<std::unique_ptr<Model>> model = Model::Load(kCases + name, options, &pool_);
    INFO(model.status());
    REQUIRE(model.ok());
    model_ = *std::move(model);
  }

  const Model& model() const { return *model_; }
  void Add(Request request) { requests_.push_back(std::move(request)); }
  Request Generate(std::vector<int32_t> input, DecodingOptions options) {
    return GenerateRequest(*model_, std::move(input), std::move(options));
  }

  std::unique_ptr<Engine> NewEngine() {
    auto engine = Engine::Create(model_.get(), tokenizer_.get(), limits_);
    REQUIRE(engine.ok());
    return *std::move(engine);
  }

  // Runs all requests and lets the n-th allocation fail (n = 0: none). Returns true if there was an
  // n-th allocation.
  bool Run(Engine* engine, int64_t n, std::vector<Outcome>* outcomes) {
    std::vector<Request> requests = requests_;
    outcomes->assign(requests.size(), {});
    for (size_t i = 0; i < requests.size(); ++i) {
      (*outcomes)[i].sink = std::make_shared<ExemptSink>();
      requests[i].sink = (*outcomes)[i].sink;
    }
    if (n > 0) ArmAllocations(n);
    for (size_t i = 0; i < requests.size(); ++i) {
      (*outcomes)[i].submitted = engine->Submit(std::move(requests[i])).status();
    }
    int steps = 0;
    while (steps < 10000 && engine->Step()) ++steps;
    const bool failed = DisarmAllocations();
    REQUIRE(steps < 10000);
    return failed;
  }

  void FindExpected() {
    Run(NewEngine().get(), 0, &expected_);
    for (const Outcome& outcome : expected_) {
      INFO(outcome.submitted << outcome.sink->status);
      REQUIRE(outcome.ok());
    }
  }
  const std::vector<Outcome>& expected() const { return expected_; }

  // Checks the results of a run with a failed allocation: a request ends either with OutOfMemory()
  // or with the same result as in the run without failures.
  void Check(const Engine& engine, const std::vector<Outcome>& outcomes, Failures* failures) {
    int64_t failed = 0;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      CAPTURE(i);
      const Outcome& outcome = outcomes[i];
      const ExemptSink &sink = *outcome.sink, &expected = *expected_[i].sink;
      REQUIRE(sink.done_calls == (outcome.submitted.ok() ? 1 : 0));
      REQUIRE(sink.tokens_after_done == 0);
      if (outcome.ok()) {
        REQUIRE(SameResult(sink.result, expected.result));
        REQUIRE(sink.streamed_ids == expected.streamed_ids);
        REQUIRE(sink.streamed_text == expected.streamed_text);
        continue;
      }
      ++failed;
      REQUIRE((outcome.submitted.ok() ? sink.status : outcome.submitted) == OutOfMemory());
      for (size_t s = 0; s < sink.streamed_text.size(); ++s) {
        REQUIRE(expected.streamed_text.at(s).starts_with(sink.streamed_text[s]));
      }
    }
    ++(failed == 0 ? failures->none : failed == 1 ? failures->one : failures->batch);
    const EngineCounters counters = engine.counters();
    REQUIRE(counters.waiting == 0);
    REQUIRE(counters.running == 0);
    REQUIRE(counters.pages_used == 0);
    REQUIRE(counters.accepted == counters.finished + counters.failed);
  }

  // Runs the workload repeatedly. In each run one allocation fails, `stride` allocations later than
  // in the run before. If `fresh`, each run uses a new engine, whose scratch buffers are still
  // small; otherwise all runs use one engine.
  Failures FailEach(bool fresh, int64_t stride) {
    FindExpected();
    Failures failures;
    std::unique_ptr<Engine> engine = NewEngine();
    std::vector<Outcome> outcomes;
    bool failed = true;
    for (int64_t n = 1; failed; n += stride) {
      if (fresh) engine = NewEngine();
      failed = Run(engine.get(), n, &outcomes);
      CAPTURE(n);
      Check(*engine, outcomes, &failures);
    }
    Failures after;
    Run(engine.get(), 0, &outcomes);
    Check(*engine, outcomes, &after);
    CHECK(after.none == 1);
    return failures;
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  EngineLimits limits_;
  std::unique_ptr<Model> model_;
  std::vector<Request> requests_;
  std::vector<Outcome> expected_;
};

std::vector<int32_t> Ids(int32_t first, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(3 + (first + 7 * i) % 250);
  return ids;
}

// Adds requests for every decoding method, streamed and not.
void AddGenerations(AllocationRun* workload) {
  DecodingOptions greedy{.max_new_tokens = 12};
  workload->Add(workload->Generate(Ids(4, 9), greedy));
  Request stream = workload->Generate(Ids(20, 5), greedy);
  stream.stream = true;
  workload->Add(stream);
  stream.decoding.stop = {"zz", "e"};
  workload->Add(stream);
  stream.decoding.stop = {};
  stream.decoding.num_beams = 3;
  workload->Add(stream);
  DecodingOptions sampled{.max_new_tokens = 8, .num_return_sequences = 3, .do_sample = true};
  sampled.seed = 5;
  sampled.logprobs = true;
  sampled.top_logprobs = 3;
  sampled.repetition_penalty = 1.3f;
  workload->Add(workload->Generate(Ids(31, 6), sampled));
  DecodingOptions beams{.max_new_tokens = 10, .num_beams = 4, .num_return_sequences = 2};
  beams.logprobs = true;
  beams.top_logprobs = 2;
  beams.no_repeat_ngram_size = 2;
  workload->Add(workload->Generate(Ids(50, 7), beams));
  DecodingOptions stopped{.max_new_tokens = 10, .num_beams = 2, .stop = {"d", "zq"}, .echo = true};
  workload->Add(workload->Generate(Ids(60, 4), stopped));
}

void AddStatesAndScores(AllocationRun* workload) {
  for (const Pooling pooling : {Pooling::kNone, Pooling::kMean}) {
    Request encode = workload->Generate(Ids(70, 11), {});
    encode.kind = RequestKind::kEncode;
    encode.pooling = pooling;
    encode.normalize = pooling == Pooling::kMean;
    workload->Add(encode);
  }
  Request score = workload->Generate(Ids(80, 5), {});
  score.kind = RequestKind::kScore;
  score.targets = {Ids(1, 4), Ids(2, 7), Ids(3, 1)};
  score.top_logprobs = 2;
  workload->Add(score);
}

void Report(const char* what, const Failures& failures) {
  std::printf("%s: one request ended in %lld runs, several of a batch in %lld, none in %lld\n",
              what, static_cast<long long>(failures.one), static_cast<long long>(failures.batch),
              static_cast<long long>(failures.none));
  CHECK(failures.one > 20);
  CHECK(failures.batch * 20 < failures.one);
}

TEST_CASE("an encoder-decoder: a failed allocation ends one request") {
  AllocationRun workload("t5-v1_1", 1);
  AddGenerations(&workload);
  AddStatesAndScores(&workload);
  SECTION("of a new engine") { Report("t5, new engine", workload.FailEach(true, 3)); }
  SECTION("of an engine that has seen such failures before") {
    Report("t5, same engine", workload.FailEach(false, 1));
  }
}

TEST_CASE("a causal model: a failed allocation ends one request") {
  AllocationRun workload("gpt2", 1);
  AddGenerations(&workload);
  AddStatesAndScores(&workload);
  SECTION("of a new engine") { Report("gpt2, new engine", workload.FailEach(true, 3)); }
  SECTION("of an engine that has seen such failures before") {
    Report("gpt2, same engine", workload.FailEach(false, 1));
  }
}

TEST_CASE("async scheduling: a failed allocation ends one request") {
  AllocationRun workload("t5-v1_1", 1, {.async_scheduling = true});
  AddGenerations(&workload);
  Report("t5, running ahead", workload.FailEach(false, 1));
}

TEST_CASE("a task head: a failed allocation ends one request") {
  for (const char* name : {"t5-seqcls", "t5-tokcls", "t5-qa"}) {
    AllocationRun workload(name, 1);
    for (int i = 0; i < 6; ++i) {
      std::vector<int32_t> input = Ids(10 * i, 4 + i);
      input.push_back(1);
      Request classify = workload.Generate(input, {});
      classify.kind = RequestKind::kClassify;
      workload.Add(classify);
    }
    Report(name, workload.FailEach(true, 1));
  }
}

TEST_CASE("an encoder cache that cannot grow ends no request") {
  AllocationRun workload("t5-v1_1", 1, {.encoder_cache_bytes = 1 << 20});
  AddStatesAndScores(&workload);
  workload.Add(workload.Generate(Ids(70, 11), {.max_new_tokens = 3}));
  const Failures failures = workload.FailEach(true, 1);
  Report("encoder cache", failures);
  CHECK(failures.none > 5);
}

TEST_CASE("allocations on the pool's threads: a failed one ends one request") {
  AllocationRun workload("t5-v1_1", 3);
  AddGenerations(&workload);
  AddStatesAndScores(&workload);
  Report("three threads", workload.FailEach(false, 7));
}

// The arrays of a step grow during the step if a sequence is longer than all before. If growing
// them fails, all requests of the step end.
TEST_CASE("a batch whose arrays cannot grow ends, and the next one is served") {
  AllocationRun workload("t5-v1_1", 1);
  workload.Add(workload.Generate(Ids(1, 900), {.max_new_tokens = 4}));
  workload.Add(workload.Generate(Ids(2, 5), {.max_new_tokens = 4}));
  workload.FindExpected();
  Failures failures;
  std::vector<Outcome> outcomes;
  bool failed = true;
  for (int64_t n = 1; failed; ++n) {
    // A new model, whose arrays are still small, so that they grow in this run.
    AllocationRun fresh("t5-v1_1", 1);
    fresh.Add(workload.Generate(Ids(1, 900), {.max_new_tokens = 4}));
    fresh.Add(workload.Generate(Ids(2, 5), {.max_new_tokens = 4}));
    const std::unique_ptr<Engine> engine = fresh.NewEngine();
    failed = fresh.Run(engine.get(), n, &outcomes);
    CAPTURE(n);
    workload.Check(*engine, outcomes, &failures);
    fresh.Run(engine.get(), 0, &outcomes);
    Failures after;
    workload.Check(*engine, outcomes, &after);
    CHECK(after.none == 1);
  }
  std::printf("growing arrays: one request ended in %lld runs, both in %lld\n",
              static_cast<long long>(failures.one), static_cast<long long>(failures.batch));
  CHECK(failures.one > 20);
  CHECK(failures.batch > 0);
}

TEST_CASE("a failed allocation is RESOURCE_EXHAUSTED with reason OUT_OF_MEMORY") {
  const absl::Status& status = OutOfMemory();
  CHECK(absl::IsResourceExhausted(status));
  const auto reason = status.GetPayload("quintet.reason");
  REQUIRE(reason.has_value());
  CHECK(*reason == "OUT_OF_MEMORY");
}

}  // namespace
}  // namespace quintet
