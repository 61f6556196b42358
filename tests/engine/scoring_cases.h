// Compares a causal model's scores from the engine with a dense reference, on any backend.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace quintet {

// A golden GPT-2 model for scoring on `device` (null: the CPU).
std::unique_ptr<Model> LoadScorer(const char* golden_case, WeightType type, Device* device,
                                  ThreadPool* pool);

// Returns a score request. Its prompt is longer than a tile of keys. Its targets have many lengths
// and together more rows than a block of rows on any backend. `seed` selects the tokens.
Request ScoreRequestFor(const ModelConfig& config, int seed);

// Runs all requests at once in one engine and returns their results.
std::vector<Result> ScoreAll(Model* model, std::vector<Request> requests);

// Returns the largest error of any token's log-probability, over these attention masks: causal;
// windows shorter than a target and longer than a tile; bidirectional within the prompt. Fails the
// test if another mask gives the same scores as the causal one.
double LargestScoreError(const char* golden_case, WeightType type, Device* device);

}  // namespace quintet
