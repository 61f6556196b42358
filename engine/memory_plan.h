// Plans the memory of a model and its engine. All of it is allocated at load; a configuration that
// does not fit is therefore refused at load and cannot fail in a request.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace quintet {

struct MemoryPlan {
  ModelMemory model;
  int64_t search = 0;  // bytes of the decoder's buffers (sampler, scores)
  // Bytes of GPU memory that loaded kernels, libraries and CUDA graphs occupy, plus the bytes that
  // are lost because allocations are rounded up.
  int64_t runtime = 0;
  int64_t pages = 0;  // number of KV cache pages
  // Host memory in bytes. With a model on a CPU it holds weights, cache and workspace; on a GPU
  // only adapters, pinned buffers and the CUDA driver's memory. `host_loading` bytes are needed in
  // addition while weights and adapters are read.
  int64_t host_weights = 0, host_cache = 0, host_workspace = 0, host_loading = 0;
  int64_t total() const {
    return model.weights + model.adapters + model.merged_weights + model.cache + model.workspace +
           search + runtime;
  }
};

// Computes the memory needed with the limits in `options`; allocates nothing. Returns the errors of
// Model::Measure.
absl::StatusOr<MemoryPlan> MeasureMemory(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool);

// How the process uses the model. kJob: it processes a whole file or list of inputs, which is
// fastest with many sequences in each step. kServing: it is a server, which needs shorter steps,
// because a request waits for whole steps.
enum class Workload : uint8_t { kServing, kJob };

// The limits that a user sets. If a limit is 0 (automatic), PlanMemory chooses its value.
struct LimitRequest {
  Workload workload = Workload::kServing;
  int64_t max_running = 0;          // sequences decoded concurrently
  int64_t max_batch_tokens = 0;     // tokens encoded in one batch
  int64_t cache_bytes = 0;          // KV cache, if the memory leaves room for it
  int64_t max_bytes = 0;            // all memory; 0: no limit except the free memory of a GPU
  int64_t max_input_tokens = 4096;  // every input of this length must fit into a batch
  int64_t models = 1;               // number of models that share the device
  bool decodes = true;              // false: the smallest KV cache suffices
};
// Returns the maximum number of new tokens in one decoder step: max_step_sequences or the default
// value of ModelLimits::max_step_tokens, whichever is larger. On a GPU it is also at least
// max_encode_tokens, so that prompts are prefilled in few steps; but models with an encoder have
// short decoder prompts, and for them min(max_encode_tokens, 4096) is enough.
int64_t MaxStepTokens(const ModelLimits& limits, const ModelConfig& config, bool on_gpu);

// Sets all of options->limits except page_size. If options->adapter_slots is 0 and the model is
// served with adapters, sets it to the number of adapters or 64, whichever is larger; on a GPU at
// most to the number of slots that fit into an eighth of the memory that the plan may use (at least
// 1). Sets options->merged_weights if the copy fits into another eighth of the memory of a GPU.
// Limits that are 0 in `request` get these automatic values:
// - max_running: on a GPU 4096 for Workload::kJob (2048 without an encoder), 1024 for kServing; on
//   a CPU 64 for kJob, 256 for kServing;
// - max_batch_tokens: 16384 on a GPU, 4096 on a CPU;
// - cache: 512 tokens for each running sequence on a GPU, 256 on a CPU, or 1 GiB if that is more;
//   but never above 85 % of the GPU memory that the rest of the plan leaves; on a CPU never above
//   1 / (4 * request.models) of the memory that the process may use.
// A plan may use request.max_bytes (0: unlimited) and, on a GPU, at most the free GPU memory
// divided by request.models. With either limit, the automatic values of max_running and
// max_batch_tokens are halved until everything but the cache fits into half of the smaller limit.
// Returns RESOURCE_EXHAUSTED, with the bytes of each part, if request.max_bytes is above 0 and the
// plan with a cache of one page exceeds it, or if the whole plan exceeds the free GPU memory.
absl::Status PlanMemory(const std::string& directory, const LimitRequest& request,
                        LoadOptions* options, ThreadPool* pool);

// Returns one line of text for logs: the limits in effect, which of them were automatic, and the
// type of the KV cache if it is not that of the activations.
std::string DescribeLimits(const LimitRequest& request, const LoadOptions& options,
                           const ModelConfig& config);

}  // namespace quintet
