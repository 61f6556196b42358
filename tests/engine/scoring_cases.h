// Scores of a causal model through the engine against a dense reference, on any backend.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "models/model.h"

namespace quintet {

// A golden GPT-2 model for scoring on `device` (null: the CPU).
std::unique_ptr<Model> LoadScorer(const char* golden_case, WeightType type, Device* device,
                                  ThreadPool* pool);

// A prompt longer than a tile of keys, and targets of many lengths: together more rows than a block
// of any backend. `seed` picks the tokens.
Request ScoreRequestFor(const ModelConfig& config, int seed);

// What requests get from one engine that has them all at once.
std::vector<Result> ScoreAll(Model* model, std::vector<Request> requests);

// The largest error of any token's log-probability over all ways to see: everything before, windows
// shorter than a target and longer than a tile, and a prompt that is read both ways. Requires that
// these differ.
double LargestScoreError(const char* golden_case, WeightType type, Device* device);

}  // namespace quintet
