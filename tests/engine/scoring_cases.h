// Compares a causal model's scores from the engine with a dense reference, on any backend.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace quintet {

// A golden GPT-2 model for scoring on `device` (null: the CPU).
std::unique_ptr<Model> LoadScorer(const char* golden_case, WeightType type, Device* device,
                                  ThreadPool* pool);

// A prompt longer than a tile of keys, and targets of many lengths with more rows in total than a
// block of any backend. `seed` selects the tokens.
Request ScoreRequestFor(const ModelConfig& config, int seed);

// Results of the requests in one engine that runs all at once.
std::vector<Result> ScoreAll(Model* model, std::vector<Request> requests);

// The largest error of any token's log-probability over all masks: causal, windows shorter than a
// target and longer than a tile, and a bidirectional prompt. Requires that the masks give different
// results.
double LargestScoreError(const char* golden_case, WeightType type, Device* device);

}  // namespace quintet
