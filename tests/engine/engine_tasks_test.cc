// Compares the results of every kind of request with the fake model's own functions.
#include <algorithm>
#include <cmath>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/reference_search.h"

namespace quintet {
namespace {

const std::vector<int32_t> kInput{5, 6, 1, 9, 1, 7};

Request BaseRequest(RequestKind kind) {
  Request request;
  request.kind = kind;
  request.input = kInput;
  request.sink = std::make_shared<RecordingSink>();
  return request;
}

absl::Status SubmitStatus(const FakeOptions& options, const Request& request) {
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  REQUIRE(engine.ok());
  return (*engine)->Submit(request).status();
}

std::vector<float> Unpacked(uint64_t hash) {
  std::vector<float> values;
  for (int i = 0; i < 4; ++i) values.push_back(static_cast<float>(hash >> (16 * i) & 0xFFFF));
  return values;
}

TEST_CASE("encode: pools the encoder's states, or those of a causal model") {
  for (const bool causal : {false, true}) {
    FakeOptions options;
    options.causal = causal;
    options.limits.max_step_tokens = 4;  // a causal input takes several steps
    std::vector<std::vector<float>> rows;
    for (size_t i = 0; i < kInput.size(); ++i) {
      rows.push_back(Unpacked(causal
                                  ? FakeModel::StateOf({}, {kInput.begin(), kInput.begin() + i + 1})
                                  : FakeModel::EncoderStateOf(kInput, i)));
    }
    Request request = BaseRequest(RequestKind::kEncode);
    request.pooling = Pooling::kNone;
    Result result = RunAlone(options, request, nullptr);
    REQUIRE(result.rows == 6);
    REQUIRE(result.columns == 4);
    for (size_t i = 0; i < 6; ++i) {
      CHECK(std::vector<float>(result.values.begin() + i * 4, result.values.begin() + i * 4 + 4) ==
            rows[i]);
    }
    request.pooling = Pooling::kFirst;
    CHECK(RunAlone(options, request, nullptr).values == rows[0]);
    request.pooling = Pooling::kLast;
    CHECK(RunAlone(options, request, nullptr).values == rows[5]);
    request.pooling = Pooling::kMean;
    result = RunAlone(options, request, nullptr);
    REQUIRE(result.rows == 1);
    for (int c = 0; c < 4; ++c) {
      double sum = 0.0;
      for (const auto& row : rows) sum += row[c];
      CHECK(result.values[c] == Approx(sum / 6));
    }
    request.normalize = true;
    const Result unit = RunAlone(options, request, nullptr);
    double square = 0.0;
    for (float v : unit.values) square += v * v;
    CHECK(square == Approx(1.0));
    CHECK(unit.values[0] / unit.values[1] == Approx(result.values[0] / result.values[1]));
  }
}

std::vector<int32_t> Shifted(std::vector<int32_t> ids) {
  ids.pop_back();
  ids.insert(ids.begin(), 0);
  return ids;
}

TEST_CASE("classify: each head reads the states that its class reads in transformers") {
  ThreadPool pool(1);
  FakeOptions options;
  const FakeModel functions(options, &pool);
  const auto labels = [&functions](uint64_t state) { return functions.LabelsOf(state); };
  const Request request = BaseRequest(RequestKind::kClassify);

  SECTION("T5 sequence: decoder state at the last eos of the input, over the shifted input") {
    options.head = Head::kSequenceClassification;
    const std::vector<int32_t> shifted = Shifted(kInput);
    const Result result = RunAlone(options, request, nullptr);
    CHECK(result.rows == 1);
    CHECK(result.columns == 3);
    CHECK(result.values ==
          labels(FakeModel::StateOf(kInput, {shifted.begin(), shifted.begin() + 5})));
  }
  SECTION("T5 question answering: all decoder states over the shifted input") {
    options.head = Head::kQuestionAnswering;
    options.limits.max_step_tokens = 2;
    const std::vector<int32_t> shifted = Shifted(kInput);
    const Result result = RunAlone(options, request, nullptr);
    REQUIRE(result.rows == 6);
    std::vector<float> expected;
    for (size_t i = 1; i <= 6; ++i) {
      const auto row = labels(FakeModel::StateOf(kInput, {shifted.begin(), shifted.begin() + i}));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    CHECK(result.values == expected);
  }
  SECTION("T5 tokens, FAT5 question answering: all encoder states") {
    std::vector<float> expected;
    for (size_t i = 0; i < 6; ++i) {
      const auto row = labels(FakeModel::EncoderStateOf(kInput, i));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    options.head = Head::kTokenClassification;
    CHECK(RunAlone(options, request, nullptr).values == expected);
    options.head = Head::kQuestionAnswering;
    options.family = Family::kFat5;
    CHECK(RunAlone(options, request, nullptr).values == expected);
  }
  SECTION("FAT5 sequence: encoder state at the last eos") {
    options.head = Head::kSequenceClassification;
    options.family = Family::kFat5;
    CHECK(RunAlone(options, request, nullptr).values ==
          labels(FakeModel::EncoderStateOf(kInput, 4)));
  }
  SECTION("GPT-2 sequence: the state of the last token that is not padding") {
    options.head = Head::kSequenceClassification;
    options.causal = true;
    options.limits.max_step_tokens = 4;
    CHECK(RunAlone(options, request, nullptr).values == labels(FakeModel::StateOf({}, kInput)));
    Request padded = request;
    padded.input = {0, 5, 0, 6, 0, 0};
    CHECK(RunAlone(options, padded, nullptr).values ==
          labels(FakeModel::StateOf({}, {0, 5, 0, 6})));
    padded.input = {0, 0};
    CHECK(RunAlone(options, padded, nullptr).values == labels(FakeModel::StateOf({}, {0})));
  }
}

TEST_CASE("score: every target has the log-probabilities that it has alone") {
  for (const bool causal : {false, true}) {
    for (const int64_t step_tokens : {2, 7, 48}) {
      FakeOptions options;
      options.causal = causal;
      options.limits.max_step_tokens = step_tokens;
      options.limits.max_step_sequences = 3;  // fewer sequences than targets
      Request request = BaseRequest(RequestKind::kScore);
      request.targets = {{4, 1}, {4, 5, 6, 7, 8}, {1}, {4, 1}, {9, 9, 9}};
      request.top_logprobs = 3;
      const Result result = RunAlone(options, request, nullptr);
      ThreadPool pool(1);
      const FakeModel functions(options, &pool);
      REQUIRE(result.targets.size() == 5);
      for (size_t t = 0; t < 5; ++t) {
        std::vector<int32_t> history = causal ? kInput : std::vector<int32_t>{0};
        double total = 0.0;
        REQUIRE(result.targets[t].tokens.size() == request.targets[t].size());
        for (size_t i = 0; i < request.targets[t].size(); ++i) {
          const int32_t token = request.targets[t][i];
          const std::vector<float> row = ReferenceLogSoftmax(functions.LogitsOf(
              FakeModel::StateOf(causal ? std::vector<int32_t>() : kInput, history)));
          const TokenLogProb& got = result.targets[t].tokens[i];
          CHECK(got.token == token);
          CHECK(got.log_prob == Approx(row[token]).epsilon(1e-5));
          REQUIRE(got.alternatives.size() == 3);
          CHECK(got.alternatives[0].second >= got.alternatives[1].second);
          for (const auto& [id, value] : got.alternatives)
            CHECK(value == Approx(row[id]).epsilon(1e-5));
          total += row[token];
          history.push_back(token);
        }
        CHECK(result.targets[t].total == Approx(total).epsilon(1e-5));
      }
      CHECK(result.output_tokens == 13);
    }
  }
}

struct Passes {
  int64_t batches, tokens;
};
// Scores `request` alone with a causal model, which processes prompt and targets in encoder batches
// and not in decoder steps. Returns the number of these batches and of the tokens in them.
Passes PassesOf(const FakeOptions& options, Request request) {
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  auto sink = std::make_shared<RecordingSink>();
  request.sink = sink;
  REQUIRE((*engine)->Submit(request).ok());
  CHECK((*engine)->counters().pages_used == 0);
  RunAll(engine->get());
  CHECK(model.errors.empty());
  CHECK(model.decodes == 0);
  CHECK(sink->status.ok());
  return {model.encode_batches, model.encoded_tokens};
}

TEST_CASE("score: a causal prompt is computed once per pass for all targets") {
  FakeOptions options;
  options.causal = true;
  options.limits.cache_pages = 1;
  Request request = BaseRequest(RequestKind::kScore);
  request.input.assign(41, 3);
  request.targets.assign(8, {4, 5, 6});
  Passes passes = PassesOf(options, request);
  CHECK(passes.batches == 1);
  CHECK(passes.tokens == 41 + 8 * 2);     // the last token of a target is not an input
  options.limits.max_encode_tokens = 47;  // three targets per pass
  passes = PassesOf(options, request);
  CHECK(passes.batches == 3);
  CHECK(passes.tokens == 3 * 41 + 8 * 2);
  request.sliding_window = 4;  // every target has its own copy of the prompt
  passes = PassesOf(options, request);
  CHECK(passes.batches == 8);
  CHECK(passes.tokens == 8 * (41 + 2));
}

TEST_CASE("score: other requests run between the passes of a long one") {
  FakeOptions options;
  options.causal = true;
  options.limits.max_encode_tokens = 50;
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  Request many = BaseRequest(RequestKind::kScore);
  many.input.assign(41, 3);
  many.targets.assign(20, {4, 5, 6});
  many.sliding_window = 4;  // twenty passes
  REQUIRE((*engine)->Submit(many).ok());
  (*engine)->Step();
  DecodingOptions two;
  two.max_new_tokens = two.min_new_tokens = 2;
  const Request stream = GenerateRequest(model, {7, 8}, two);
  Request other = BaseRequest(RequestKind::kScore);
  other.targets = {{4}};
  REQUIRE((*engine)->Submit(stream).ok());
  REQUIRE((*engine)->Submit(other).ok());
  for (int step = 0; step < 8; ++step) (*engine)->Step();
  const auto done = [](const Request& request) {
    return static_cast<const RecordingSink&>(*request.sink).done_calls;
  };
  CHECK(done(stream) == 1);
  CHECK(done(other) == 1);
  CHECK(done(many) == 0);
  RunAll(engine->get());
  CHECK(model.errors.empty());
  CHECK(SameResult(static_cast<const RecordingSink&>(*many.sink).result,
                   RunAlone(options, many, nullptr)));
}

// Returns the log-probability of `token` after `history`, which holds only the tokens that the
// attention mask leaves visible.
float LogProbAfter(const FakeModel& functions, const std::vector<int32_t>& history, int32_t token) {
  return ReferenceLogSoftmax(functions.LogitsOf(FakeModel::StateOf({}, history)))[token];
}

TEST_CASE("score: sliding window and bidirectional prefix change what tokens attend to") {
  FakeOptions options;
  options.causal = true;
  ThreadPool pool(1);
  const FakeModel functions(options, &pool);
  Request request = BaseRequest(RequestKind::kScore);
  request.targets = {{4, 1, 8}, {4}, {9, 9, 9, 2, 3}};
  SECTION("a window covers a token and those before it, across the end of the prompt") {
    for (const int64_t window : {1, 3, 7, 10, 1000}) {
      request.sliding_window = window;
      const Result result = RunAlone(options, request, nullptr);
      for (size_t t = 0; t < request.targets.size(); ++t) {
        std::vector<int32_t> history = kInput;
        for (size_t i = 0; i < request.targets[t].size(); ++i) {
          const size_t seen = std::min<size_t>(history.size(), static_cast<size_t>(window));
          const int32_t token = request.targets[t][i];
          const float expected =
              LogProbAfter(functions, {history.end() - seen, history.end()}, token);
          CHECK(result.targets[t].tokens[i].log_prob == Approx(expected).epsilon(1e-5));
          history.push_back(token);
        }
      }
    }
  }
  SECTION("a prefix: targets attend as before, prompt tokens to the whole prompt") {
    request.prefix_lm = true;
    const Result bidirectional = RunAlone(options, request, nullptr);
    request.prefix_lm = false;
    // The fake model acts like one layer: keys and values do not depend on the mask, so the mask of
    // the prompt does not change the targets' scores. tests/models/gpt2_test.cc tests more layers.
    CHECK(SameResult(bidirectional, RunAlone(options, request, nullptr)));
  }
}

TEST_CASE("score: options that the model does not support are refused with a reason") {
  const auto message = [](bool causal, int64_t window, bool prefix_lm) {
    FakeOptions options;
    options.causal = causal;
    Request request = BaseRequest(RequestKind::kScore);
    request.targets = {{4}};
    request.sliding_window = window;
    request.prefix_lm = prefix_lm;
    const absl::Status status = SubmitStatus(options, request);
    CHECK((status.ok() || status.code() == absl::StatusCode::kInvalidArgument));
    return std::string(status.message());
  };
  CHECK(message(true, 5, false).empty());
  CHECK(message(true, 0, true).empty());
  CHECK_THAT(message(true, 5, true),
             Catch::Matchers::StartsWith("sliding_window: cannot be combined"));
  CHECK_THAT(message(true, -1, false), Catch::Matchers::StartsWith("sliding_window: -1"));
  CHECK_THAT(message(false, 5, false), Catch::Matchers::StartsWith("sliding_window: only causal"));
  CHECK_THAT(message(false, 0, true), Catch::Matchers::StartsWith("prefix_lm: only causal"));
}

// Checks each token's log-probability in `result` against the raw logits of the tokens before it.
void CheckLogProbs(const FakeModel& functions, const Request& request, const Result& result) {
  for (const GeneratedSequence& sequence : result.sequences) {
    REQUIRE(sequence.logprobs.size() == sequence.token_ids.size());
    std::vector<int32_t> history = request.decoding.prompt;
    for (size_t i = 0; i < sequence.token_ids.size(); ++i) {
      const std::vector<float> row =
          ReferenceLogSoftmax(functions.LogitsOf(FakeModel::StateOf(request.input, history)));
      std::vector<float> sorted = row;
      std::sort(sorted.rbegin(), sorted.rend());
      const TokenLogProb& got = sequence.logprobs[i];
      CHECK(got.token == sequence.token_ids[i]);
      CHECK(got.log_prob == Approx(row[got.token]).epsilon(1e-5));
      REQUIRE(got.alternatives.size() == 4);
      for (size_t k = 0; k < 4; ++k) {
        CHECK(got.alternatives[k].second == Approx(sorted[k]).epsilon(1e-5));
        CHECK(got.alternatives[k].second == Approx(row[got.alternatives[k].first]).epsilon(1e-5));
      }
      history.push_back(got.token);
    }
  }
}

TEST_CASE("log-probabilities are of the raw logits, whatever the processors do") {
  FakeOptions options;
  options.eos_bonus = 1.0f;
  ThreadPool pool(1);
  const FakeModel functions(options, &pool);
  for (int beams : {1, 4}) {
    for (bool sample : {false, true}) {
      for (bool processors : {false, true}) {
        Request request = BaseRequest(RequestKind::kGenerate);
        DecodingOptions& o = request.decoding;
        o.prompt = {0};
        o.eos_token_ids = {1};
        o.max_new_tokens = 8;
        o.num_beams = beams;
        o.do_sample = sample;
        o.num_return_sequences = beams > 1 || sample ? 3 : 1;
        o.logprobs = true;
        o.top_logprobs = 4;
        o.warp.temperature = 0.7f;
        if (processors) {
          o.repetition_penalty = 1.5f;
          o.no_repeat_ngram_size = 2;
          o.suppress_tokens = {3, 4, 5};
        }
        const Result result = RunAlone(options, request, nullptr);
        REQUIRE(result.sequences.size() == static_cast<size_t>(o.num_return_sequences));
        CheckLogProbs(functions, request, result);
      }
    }
  }
}

TEST_CASE("samples of one request are independent draws from the softmax") {
  FakeOptions options;
  options.vocab = 6;
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  auto engine = Engine::Create(&model, nullptr, EngineLimits());
  std::vector<Request> requests;
  for (int seed = 0; seed < 200; ++seed) {
    Request request = BaseRequest(RequestKind::kGenerate);
    request.input = {3, 4, 5};
    request.decoding.prompt = {0};
    request.decoding.max_new_tokens = 1;
    request.decoding.do_sample = true;
    request.decoding.num_return_sequences = 16;
    request.decoding.seed = seed;
    request.decoding.warp.temperature = 4.0f;
    REQUIRE((*engine)->Submit(request).ok());
    requests.push_back(request);
  }
  RunAll(engine->get());
  std::vector<float> row = model.LogitsOf(FakeModel::StateOf({3, 4, 5}, {0}));
  for (float& x : row) x /= 4.0f;
  const std::vector<float> log_probs = ReferenceLogSoftmax(row);
  std::vector<int> counts(6);
  int same_as_first = 0;
  for (const Request& request : requests) {
    const auto& sequences = static_cast<const RecordingSink&>(*request.sink).result.sequences;
    REQUIRE(sequences.size() == 16);
    int same = 0;
    for (const GeneratedSequence& sequence : sequences) {
      ++counts[sequence.token_ids.at(0)];
      same += sequence.token_ids == sequences[0].token_ids;
    }
    same_as_first += same == 16;
  }
  CHECK(same_as_first == 0);
  double chi = 0.0;
  for (int v = 0; v < 6; ++v) {
    const double expected = std::exp(log_probs[v]) * 3200;
    chi += (counts[v] - expected) * (counts[v] - expected) / expected;
  }
  CHECK(chi < 20.5);  // 5 degrees of freedom, 0.1 %
}

TEST_CASE("a repeated input is not encoded again and gives the same result") {
  FakeOptions options;
  ThreadPool pool(1);
  FakeModel model(options, &pool);
  EngineLimits limits;
  limits.encoder_cache_bytes = 1 << 16;
  auto engine = Engine::Create(&model, nullptr, limits);
  std::vector<Request> requests;
  for (int beams : {1, 4, 2}) {
    Request request = BaseRequest(RequestKind::kGenerate);
    request.decoding.prompt = {0};
    request.decoding.max_new_tokens = 6;
    request.decoding.num_beams = beams;
    requests.push_back(request);
  }
  requests.push_back(BaseRequest(RequestKind::kEncode));
  for (const Request& request : requests) {
    REQUIRE((*engine)->Submit(request).ok());
    RunAll(engine->get());
    const auto& sink = static_cast<const RecordingSink&>(*request.sink);
    CHECK(SameResult(sink.result, RunAlone(options, request, nullptr)));
    CHECK(sink.result.cached_tokens == (&request == &requests[0] ? 0 : 6));
  }
  CHECK(model.encode_batches == 1);
  CHECK(model.errors.empty());
  CHECK((*engine)->counters().encoder_cache_queries == 4);
  CHECK((*engine)->counters().encoder_cache_hits == 3);
}

TEST_CASE("without a tokenizer ids are streamed, token by token") {
  ThreadPool pool(1);
  FakeModel model(FakeOptions(), &pool);
  auto engine = Engine::Create(&model, nullptr, {});
  REQUIRE(engine.ok());
  for (const int32_t beams : {1, 3}) {
    auto sink = std::make_shared<RecordingSink>();
    DecodingOptions options;
    options.max_new_tokens = options.min_new_tokens = 12;
    options.num_beams = beams;
    Request request = GenerateRequest(model, {7, 8, 9}, options);
    request.stream = true;
    request.sink = sink;
    REQUIRE((*engine)->Submit(request).ok());
    for (int step = 0; step < 6; ++step) (*engine)->Step();
    const bool early = !sink->streamed_ids.empty() && !sink->streamed_ids[0].empty();
    if (beams == 1) CHECK(early);
    RunAll(engine->get());
    REQUIRE(sink->status.ok());
    CHECK(sink->streamed_ids.at(0) == sink->result.sequences.at(0).token_ids);
  }
}

TEST_CASE("a missing head is a failed precondition") {
  FakeOptions options;
  options.head = Head::kEncoder;
  Request request = BaseRequest(RequestKind::kGenerate);
  request.decoding.prompt = {0};
  CHECK(SubmitStatus(options, request).code() == absl::StatusCode::kFailedPrecondition);
  request = BaseRequest(RequestKind::kScore);
  request.targets = {{1}};
  CHECK(SubmitStatus(options, request).code() == absl::StatusCode::kFailedPrecondition);
  request = BaseRequest(RequestKind::kClassify);
  CHECK(SubmitStatus(options, request).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(SubmitStatus(options, BaseRequest(RequestKind::kEncode)).ok());
  options.head = Head::kLanguageModel;
  CHECK(SubmitStatus(options, request).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a request that can never be served is refused at submission") {
  FakeOptions options;
  const auto refused = [&options](Request request) {
    const absl::Status status = SubmitStatus(options, request);
    INFO(status.message());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  };
  const auto generate = [] {
    Request request = BaseRequest(RequestKind::kGenerate);
    request.decoding.prompt = {0};
    return request;
  };
  REQUIRE(SubmitStatus(options, generate()).ok());
  Request request = generate();
  request.input.clear();
  refused(request);
  request = generate();
  request.input = {3, 40};
  refused(request);
  request.input = {-1};
  refused(request);
  request.input.assign(257, 3);  // encoder batch
  refused(request);
  request = generate();
  request.decoding.max_new_tokens = 1000;  // pages
  refused(request);
  request = generate();
  request.decoding.stop = {"x"};  // no tokenizer
  refused(request);
  request = generate();
  request.decoding.eos_token_ids = {40};
  refused(request);
  request = generate();
  request.sink = nullptr;
  refused(request);
  request = BaseRequest(RequestKind::kScore);
  refused(request);
  request.targets = {{}};
  refused(request);
  request.targets = {{40}};
  refused(request);
  request.targets = {{4}};
  request.top_logprobs = 21;
  refused(request);
  options.limits.max_step_sequences = 3;
  request = generate();
  request.decoding.num_beams = 4;
  refused(request);
  options = FakeOptions();
  options.causal = true;
  options.max_positions = 10;
  request = generate();
  request.decoding.prompt = request.input;
  request.decoding.max_new_tokens = 5;  // 6 + 5
  refused(request);
  request = BaseRequest(RequestKind::kScore);
  request.targets = {{1, 2, 3, 4, 5, 6}};  // 6 + 5 read
  refused(request);
  options = FakeOptions();
  options.head = Head::kSequenceClassification;
  request = BaseRequest(RequestKind::kClassify);
  request.input = {3, 4};  // no eos
  refused(request);
}

}  // namespace
}  // namespace quintet
