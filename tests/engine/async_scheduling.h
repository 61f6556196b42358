// Requests with all kinds of logits processors, sampling and beams. Tests run them on an engine,
// each request alone and many in mixed batches, with and without async scheduling, on a CPU and on
// a GPU, and compare the chosen tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quintet {

// Directories of small models, relative to the repository root.
inline constexpr const char* kChoosingModels[] = {"/deploy/models/g2p", "/tests/golden/cases/gpt2",
                                                  "/tests/golden/cases/t5-v1_1",
                                                  "/tests/golden/cases/mt5"};

// Loads a model in f32. Fails the test if it cannot be loaded.
std::unique_ptr<Model> LoadChoosing(const std::string& folder, Device* device, ThreadPool* pool,
                                    int64_t sequences = 64);

std::vector<Request> RandomChoices(const ModelConfig& config, int count, uint32_t seed);

// Returns random requests like those of RandomChoices, except that most use beam search and none
// asks for log-probabilities. The decoder therefore schedules their steps asynchronously.
std::vector<Request> RandomBeams(const ModelConfig& config, int count, uint32_t seed);

// Runs the requests in a new engine and returns their results. Submits one more request in every
// second step. Every `cancel_each`-th request (0: none) is cancelled some steps after its
// submission and gets an empty result.
std::vector<Result> Choose(Model* model, std::vector<Request> requests, bool async_scheduling,
                           int cancel_each = 0);

// Runs the requests in a new engine, like Choose, but submits all of them before the first step and
// cancels none.
std::vector<Result> ChooseTogether(Model* model, std::vector<Request> requests,
                                   bool async_scheduling);

// Returns true if the tokens are equal and scores and log-probabilities differ by at most
// `tolerance`.
bool ChoseAlike(const Result& a, const Result& b, float tolerance);

}  // namespace quintet
