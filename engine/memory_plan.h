// What a model and its engine take where they run. All of it is taken at load, so what does not fit
// is refused there and not in the middle of a request.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace quintet {

struct MemoryPlan {
  ModelMemory model;
  int64_t search = 0;  // buffers of the engine's decoder
  int64_t runtime =
      0;  // of a GPU: loaded kernels, libraries, recorded steps, rounding of allocations
  int64_t pages = 0;  // of keys and values
  // The host's part: everything on a CPU, the pinned buffers on a GPU; `host_loading`
  // is held only while weights are read.
  int64_t host_weights = 0, host_cache = 0, host_workspace = 0, host_loading = 0;
  int64_t total() const { return model.weights + model.cache + model.workspace + search + runtime; }
};

// What the limits in `options` ask for; nothing is allocated. Errors are those of Model::Measure.
absl::StatusOr<MemoryPlan> MeasureMemory(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool);

struct MemoryBounds {
  int64_t cache_bytes = 0;  // keys and values, where there is room for so many
  int64_t max_bytes = 0;    // of everything; 0: what the device has free, and on a CPU no limit
};
// How many new tokens a step may have: one of every sequence, and for what is given to a decoder on
// a GPU as many as fill it: prompts of a causal model as inputs are encoded, what an encoder's
// decoder is given, which is short, not more than a constant.
int64_t MaxStepTokens(const ModelLimits& limits, const ModelConfig& config, bool on_gpu);

// Sets two of options->limits: max_step_tokens, as MaxStepTokens; and cache_pages, as many as the
// bounds leave room for. RESOURCE_EXHAUSTED, with each part's bytes, where not one fits, or,
// without max_bytes, not all that were asked for.
absl::Status PlanMemory(const std::string& directory, const MemoryBounds& bounds,
                        LoadOptions* options, ThreadPool* pool);

}  // namespace quintet
