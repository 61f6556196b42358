#include "tests/engine/scoring_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "tests/catch.h"
#include "tests/engine/dense_gpt2.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// Returns the directory of a golden case. If QUINTET_GOLDEN_DIR is set, it names the directory of
// all cases, for runs on another machine.
std::string CaseDirectory(const char* golden_case) {
  const char* elsewhere = std::getenv("QUINTET_GOLDEN_DIR");
  const std::string root = elsewhere ? elsewhere : QUINTET_SOURCE_DIR "/tests/golden/cases";
  return root + "/" + golden_case;
}

// Returns the log-probability that the reference `dense` gives to every token of every target. Each
// target directly follows the prompt and does not attend to other targets.
std::vector<std::vector<double>> Expected(const DenseGpt2& dense, const Request& request) {
  const int64_t prompt = static_cast<int64_t>(request.input.size());
  const auto sees = [&](int64_t q, int64_t k) {
    if (request.prefix_lm && q < prompt && k < prompt) return true;
    return k <= q && (request.sliding_window == 0 || q - k < request.sliding_window);
  };
  std::vector<std::vector<double>> expected;
  for (const std::vector<int32_t>& target : request.targets) {
    std::vector<int32_t> tokens = request.input;
    tokens.insert(tokens.end(), target.begin(), target.end() - 1);
    const auto log_probs = dense.LogProbs(tokens, sees);
    expected.emplace_back();
    for (size_t i = 0; i < target.size(); ++i) {
      expected.back().push_back(log_probs[request.input.size() - 1 + i][target[i]]);
    }
  }
  return expected;
}

double LargestError(const Result& result, const std::vector<std::vector<double>>& expected) {
  double worst = 0;
  REQUIRE(result.targets.size() == expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    REQUIRE(result.targets[t].tokens.size() == expected[t].size());
    for (size_t i = 0; i < expected[t].size(); ++i) {
      const double error = std::abs(result.targets[t].tokens[i].log_prob - expected[t][i]);
      worst = error <= worst ? worst : error;  // NaN counts as the largest
    }
  }
  return worst;
}

}  // namespace

std::unique_ptr<Model> LoadScorer(const char* golden_case, WeightType type, Device* device,
                                  ThreadPool* pool) {
  LoadOptions options;
  options.weights = type;
  options.device = device;
  options.limits.max_encode_tokens = 1000;
  options.limits.max_step_tokens = 100;  // scores are computed in several blocks
  options.limits.max_step_sequences = 4;
  options.limits.cache_pages = 1;
  auto model = Model::Load(CaseDirectory(golden_case), options, pool);
  INFO(model.status());
  REQUIRE(model.ok());
  return *std::move(model);
}

Request ScoreRequestFor(const ModelConfig& config, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % config.vocab);
    return ids;
  };
  constexpr int64_t kLongest = 24;
  Request request;
  request.kind = RequestKind::kScore;
  request.input = tokens(config.max_positions - kLongest + 1);
  for (int i = 0; i < 2; ++i) {
    for (const int64_t length : {5L, 1L, kLongest, 17L, 2L, 9L, 1L, kLongest, 13L, 20L, 23L, 16L}) {
      request.targets.push_back(tokens(length));
    }
  }
  request.top_logprobs = 2;
  return request;
}

std::vector<Result> ScoreAll(Model* model, std::vector<Request> requests) {
  auto engine = Engine::Create(model, nullptr, EngineLimits());
  REQUIRE(engine.ok());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (Request& request : requests) {
    sinks.push_back(std::make_shared<RecordingSink>());
    request.sink = sinks.back();
    REQUIRE((*engine)->Submit(std::move(request)).ok());
  }
  RunAll(engine->get());
  std::vector<Result> results;
  for (const auto& sink : sinks) {
    INFO(sink->status);
    REQUIRE(sink->status.ok());
    results.push_back(std::move(sink->result));
  }
  return results;
}

double LargestScoreError(const char* golden_case, WeightType type, Device* device) {
  ThreadPool pool(2);
  const auto model = LoadScorer(golden_case, type, device, &pool);
  const DenseGpt2 dense(CaseDirectory(golden_case));
  std::vector<Request> requests(4, ScoreRequestFor(model->config(), 1));
  requests[1].sliding_window = 4;
  requests[2].sliding_window = 70;
  requests[3].prefix_lm = true;
  const std::vector<Result> results = ScoreAll(model.get(), requests);
  double worst = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const double error = LargestError(results[i], Expected(dense, requests[i]));
    worst = error <= worst ? worst : error;
    if (i > 0) CHECK(results[i].targets[2].total != results[0].targets[2].total);
  }
  return worst;
}

}  // namespace quintet
