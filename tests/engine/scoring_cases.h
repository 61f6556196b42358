// Compares the engine's scores of a causal model, on any backend, with plain loops (DenseGpt2).
#pragma once

#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace quintet {

// Loads the GPT-2 model of a case in tests/golden/cases, for scoring on `device` (null: the CPU).
std::unique_ptr<Model> LoadScorer(const char* golden_case, WeightType type, Device* device,
                                  ThreadPool* pool);

// Returns a score request. Its prompt is longer than a tile of keys. Its 24 targets have different
// lengths and 310 tokens in all, so that LoadScorer's model scores them in several blocks. `seed`
// selects the tokens.
Request ScoreRequestFor(const ModelConfig& config, int seed);

// Runs all requests together in one engine and returns their results.
std::vector<Result> ScoreAll(Model* model, std::vector<Request> requests);

// Returns the largest error of any token's log-probability, over four attention masks: causal; a
// window shorter than a target; a window longer than a tile; bidirectional within the prompt. Fails
// the test if one of the last three gives the same scores as the causal mask.
double LargestScoreError(const char* golden_case, WeightType type, Device* device);

}  // namespace quintet
