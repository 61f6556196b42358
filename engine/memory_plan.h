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
  int64_t total() const { return model.weights + model.cache + model.workspace + search + runtime; }
};

// What the limits in `options` ask for; nothing is allocated. Errors are those of Model::Measure.
absl::StatusOr<MemoryPlan> MeasureMemory(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool);

struct MemoryBounds {
  int64_t cache_bytes = 0;  // keys and values, where there is room for so many
  int64_t max_bytes = 0;    // of everything; 0: what the device has free, and on a CPU no limit
};
// Sets options->limits.cache_pages: as many pages as the bounds leave room for. RESOURCE_EXHAUSTED,
// with each part's bytes, where not one fits, or, without max_bytes, not all that were asked for.
absl::Status PlanMemory(const std::string& directory, const MemoryBounds& bounds,
                        LoadOptions* options, ThreadPool* pool);

}  // namespace quintet
