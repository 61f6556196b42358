// Scores of GPT-2 on the CPU: equal to a dense reference, and bit-identical in any batch.
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/scoring_cases.h"

namespace quintet {
namespace {

TEST_CASE("scores equal a dense model with the same mask") {
  for (const char* golden_case : {"gpt2", "gpt2-variant"}) {
    INFO(golden_case);
    CHECK(LargestScoreError(golden_case, WeightType::kF32, nullptr) <= 1e-4);
  }
}

TEST_CASE("scores are bit-identical alone and in a batch, also with a bidirectional prompt") {
  ThreadPool pool(2);
  const auto model = LoadScorer("gpt2", WeightType::kF32, nullptr, &pool);
  std::vector<Request> requests;
  for (int seed = 0; seed < 9; ++seed) {
    Request request = ScoreRequestFor(model->config(), seed);
    request.input.resize(static_cast<size_t>(3 + 11 * seed));
    request.targets.resize(static_cast<size_t>(1 + seed % 4));
    request.prefix_lm = seed % 3 == 1;
    request.sliding_window = seed % 3 == 2 ? 5 : 0;
    requests.push_back(request);
  }
  const std::vector<Result> together = ScoreAll(model.get(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    CHECK(SameResult(together[i], ScoreAll(model.get(), {requests[i]})[0]));
  }
}

TEST_CASE("scores of a generated sequence equal the log-probabilities of its generation") {
  ThreadPool pool(1);
  LoadOptions options;
  auto model = Model::Load(QUINTET_SOURCE_DIR "/tests/golden/cases/gpt2", options, &pool);
  REQUIRE(model.ok());
  Request generate = GenerateRequest(**model, ScoreRequestFor((*model)->config(), 3).input);
  generate.decoding.max_new_tokens = 20;
  generate.decoding.logprobs = true;
  const Result made = ScoreAll(model->get(), {generate})[0];
  Request score;
  score.kind = RequestKind::kScore;
  score.input = generate.input;
  score.targets = {made.sequences.at(0).token_ids};
  const Result scored = ScoreAll(model->get(), {score})[0];
  REQUIRE(made.sequences[0].logprobs.size() == scored.targets[0].tokens.size());
  for (size_t i = 0; i < scored.targets[0].tokens.size(); ++i) {
    CHECK(scored.targets[0].tokens[i].log_prob ==
          Approx(made.sequences[0].logprobs[i].log_prob).margin(1e-5));
  }
}

}  // namespace
}  // namespace quintet
