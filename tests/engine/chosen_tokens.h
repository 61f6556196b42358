// Requests with all kinds of rules, draws and beams, for comparing what an engine chooses here and
// there: alone and in company, with steps that run ahead and without, on a CPU and on a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quintet {

// Folders of small models, from the repository's root.
inline constexpr const char* kChoosingModels[] = {"/deploy/models/g2p", "/tests/golden/cases/gpt2",
                                                  "/tests/golden/cases/t5-v1_1",
                                                  "/tests/golden/cases/mt5"};

// In f32. Fails the test where it cannot be loaded.
std::unique_ptr<Model> LoadChoosing(const std::string& folder, Device* device, ThreadPool* pool);

std::vector<Request> RandomChoices(const ModelConfig& config, int count, uint32_t seed);

// The same, most of them with beams and none with log-probabilities: what steps of beams ahead are
// made of.
std::vector<Request> RandomBeams(const ModelConfig& config, int count, uint32_t seed);

// What they get in an engine of their own, one request more in every second step. Every
// `cancel_each`-th (0: none) is cancelled some steps after it came, and gets an empty result.
std::vector<Result> Choose(Model* model, std::vector<Request> requests, bool async_scheduling,
                           int cancel_each = 0);

// The same tokens, and scores and log-probabilities within `tolerance`.
bool ChoseAlike(const Result& a, const Result& b, float tolerance);

}  // namespace quintet
