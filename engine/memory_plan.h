// Memory that a model and its engine need. All of it is allocated at load, so a configuration that
// does not fit is refused then and not during a request.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace quintet {

struct MemoryPlan {
  ModelMemory model;
  int64_t search = 0;  // bytes of the decoder's buffers (sampler, scores)
  // Bytes of GPU memory for loaded kernels, libraries, CUDA graphs and rounded-up allocations.
  int64_t runtime = 0;
  int64_t pages = 0;  // number of KV cache pages
  // Bytes of host memory: on a CPU all memory of the plan, on a GPU pinned buffers and the driver's
  // memory. `host_loading` is held only while weights are read.
  int64_t host_weights = 0, host_cache = 0, host_workspace = 0, host_loading = 0;
  int64_t total() const { return model.weights + model.cache + model.workspace + search + runtime; }
};

// Computes the memory for the limits in `options`; allocates nothing. Returns the errors of
// Model::Measure.
absl::StatusOr<MemoryPlan> MeasureMemory(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool);

struct MemoryBounds {
  int64_t cache_bytes = 0;  // KV cache, if max_bytes leaves room for it
  int64_t max_bytes = 0;    // total; 0: the free memory of the GPU, or no limit on a CPU
};
// Returns the maximum number of new tokens in one decoder step: max_step_sequences or the default
// value of ModelLimits::max_step_tokens, whichever is larger. On a GPU it is also at least
// max_encode_tokens, so that prompts are prefilled in few steps; for encoder-decoders, whose
// decoder prompts are short, at least the smaller of max_encode_tokens and 4096.
int64_t MaxStepTokens(const ModelLimits& limits, const ModelConfig& config, bool on_gpu);

// Sets options->limits.max_step_tokens (MaxStepTokens) and options->limits.cache_pages (as many as
// the bounds allow). RESOURCE_EXHAUSTED, with the bytes of each part, if a max_bytes above 0 leaves
// no room for one page, or if max_bytes is 0 and the plan exceeds the free memory of the GPU.
absl::Status PlanMemory(const std::string& directory, const MemoryBounds& bounds,
                        LoadOptions* options, ThreadPool* pool);

}  // namespace quintet
