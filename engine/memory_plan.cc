#include "engine/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/decoder.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

// Returns the bytes of loaded kernels and CUDA graphs, plus the bytes lost by rounding up the size
// of every weight matrix. Measured sums on an H200, depending on the weight type: 17 to 27 MiB with
// GPT-2's 48 matrices, 89 to 150 MiB with T5-base's 120.
int64_t RuntimeBytes(const ModelConfig& config) {
  constexpr int64_t kKernelBytes = int64_t{20} << 20, kRoundingBytes = int64_t{1} << 19;
  const int64_t matrices =
      4 * config.encoder_layers + (config.has_encoder() ? 6 : 4) * config.decoder_layers;
  return kKernelBytes + matrices * kRoundingBytes;
}

// Host memory in bytes that is used only while weights are read: the parsed headers of the files,
// and for each thread the block of a matrix that it reads and may dequantise
// (models/weights/weights.cc).
int64_t LoadingBytes(int threads) {
  constexpr int64_t kThreadBytes = int64_t{8} << 20, kHeaderBytes = int64_t{32} << 20;
  return threads * kThreadBytes + kHeaderBytes;
}

// Sets the host memory of the plan. On a CPU: weights, cache and workspace. On a GPU: the pinned
// buffers for encoder outputs and the sampler, and the driver's memory for modules and streams.
void SetHostBytes(const ModelConfig& config, const LoadOptions& options, int threads,
                  MemoryPlan* plan) {
  constexpr int64_t kDriverBytes = int64_t{256} << 20;
  plan->host_loading = LoadingBytes(threads);
  if (options.device == nullptr) {
    plan->host_weights = plan->model.weights;
    plan->host_cache = plan->model.cache;
    plan->host_workspace = plan->model.workspace + plan->search;
  } else {
    plan->host_workspace =
        options.limits.max_encode_tokens * config.d_model * 4 + plan->search + kDriverBytes;
  }
}

absl::Status TooLarge(const MemoryPlan& plan, absl::string_view where, int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the model needs ", plan.total(), " bytes (weights ", plan.model.weights,
                   ", keys and values ", plan.model.cache, ", workspace ", plan.model.workspace,
                   ", search ", plan.search, ", runtime ", plan.runtime, "), ", where, " ", bytes));
}

}  // namespace

absl::StatusOr<MemoryPlan> MeasureMemory(const std::string& directory, const LoadOptions& options,
                                         ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
  QT_ASSIGN_OR_RETURN(const ModelMemory model, Model::Measure(directory, options, pool));
  MemoryPlan plan;
  plan.model = model;
  plan.search = Decoder::BufferBytes(config, options.limits, Stream(pool, options.device));
  if (options.device != nullptr) plan.runtime = RuntimeBytes(config);
  plan.pages = config.has_decoder() ? options.limits.cache_pages : 0;
  SetHostBytes(config, options, pool->threads(), &plan);
  return plan;
}

int64_t MaxStepTokens(const ModelLimits& limits, const ModelConfig& config, bool on_gpu) {
  constexpr int64_t kMostForDecoder = 4096;
  int64_t given = ModelLimits().max_step_tokens;
  if (on_gpu && config.has_encoder()) {
    given = std::max(given, std::min(limits.max_encode_tokens, kMostForDecoder));
  } else if (on_gpu) {
    given = std::max(given, limits.max_encode_tokens);
  }
  return std::max(given, limits.max_step_sequences);
}

absl::Status PlanMemory(const std::string& directory, const MemoryBounds& bounds,
                        LoadOptions* options, ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
  ModelLimits& limits = options->limits;
  limits.max_step_tokens = MaxStepTokens(limits, config, options->device != nullptr);
  limits.cache_pages = 1;
  if (config.has_decoder()) {
    const DType dtype = ActivationType(options->weights, options->device);
    const int64_t page_bytes = CachePageBytes(config, limits.page_size, dtype);
    limits.cache_pages = std::max<int64_t>(1, bounds.cache_bytes / page_bytes);
  }
  if (bounds.max_bytes == 0 && options->device == nullptr) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(MemoryPlan plan, MeasureMemory(directory, *options, pool));
  if (options->device != nullptr) {
    const int64_t free_bytes = options->device->free_bytes();
    if (bounds.max_bytes == 0 && plan.total() > free_bytes) {
      return TooLarge(plan, "the GPU has free", free_bytes);
    }
  }
  const int64_t over = bounds.max_bytes == 0 ? 0 : plan.total() - bounds.max_bytes;
  if (over <= 0) return absl::OkStatus();
  const int64_t page_bytes = plan.model.cache / limits.cache_pages;
  const int64_t fewer = page_bytes == 0 ? limits.cache_pages : (over + page_bytes - 1) / page_bytes;
  if (fewer >= limits.cache_pages) {
    plan.model.cache = page_bytes;
    return TooLarge(plan, "with one page of keys and values, --max-memory allows",
                    bounds.max_bytes);
  }
  limits.cache_pages -= fewer;
  return absl::OkStatus();
}

}  // namespace quintet
