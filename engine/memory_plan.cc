#include "engine/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/decoder.h"
#include "engine/process_memory.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

// Returns an estimate in bytes of the memory for loaded kernels and CUDA graphs, and of the memory
// lost by rounding up the size of every weight matrix. Measured on an H200, depending on the weight
// type: 17 to 27 MiB with GPT-2's 48 matrices, 89 to 150 MiB with T5-base's 120.
int64_t RuntimeBytes(const ModelConfig& config) {
  constexpr int64_t kKernelBytes = int64_t{20} << 20, kRoundingBytes = int64_t{1} << 19;
  const int64_t matrices =
      4 * config.encoder_layers + (config.has_encoder() ? 6 : 4) * config.decoder_layers;
  return kKernelBytes + matrices * kRoundingBytes;
}

// Returns the bytes of host memory used only while weights are read: the parsed headers of the
// files and, for each thread, one block of rows of a matrix, which the thread reads and, if
// necessary, dequantizes (models/weights/weights.cc).
int64_t LoadingBytes(int threads) {
  constexpr int64_t kThreadBytes = int64_t{8} << 20, kHeaderBytes = int64_t{32} << 20;
  return threads * kThreadBytes + kHeaderBytes;
}

// Computes the fields of `plan` that count bytes of host memory. With a model on a CPU they include
// weights, cache and workspace; on a GPU adapters, the pinned buffers for encoder outputs and the
// sampler, and an estimate of the CUDA driver's memory.
void SetHostBytes(const ModelConfig& config, const LoadOptions& options, int threads,
                  MemoryPlan* plan) {
  constexpr int64_t kDriverBytes = int64_t{256} << 20;
  // Adapters are read one after the other, after the weights.
  plan->host_loading = std::max(LoadingBytes(threads), plan->model.adapter_reading);
  if (options.device == nullptr) {
    plan->host_weights = plan->model.weights + plan->model.adapters;
    plan->host_cache = plan->model.cache;
    plan->host_workspace = plan->model.workspace + plan->search;
  } else {
    plan->host_weights = plan->model.host_adapters;
    plan->host_workspace =
        options.limits.max_encode_tokens * config.d_model * 4 + plan->search + kDriverBytes;
  }
}

absl::Status TooLarge(const MemoryPlan& plan, absl::string_view where, int64_t bytes) {
  const auto mib = [](int64_t count) { return (count + (int64_t{1} << 20) - 1) >> 20; };
  return absl::ResourceExhaustedError(absl::StrCat(
      "the model needs ", mib(plan.total()), " MiB (weights ", mib(plan.model.weights),
      ", adapters ", mib(plan.model.adapters + plan.model.merged_weights), ", keys and values ",
      mib(plan.model.cache), ", workspace ", mib(plan.model.workspace), ", search ",
      mib(plan.search), ", runtime ", mib(plan.runtime), "), ", where, " ", bytes >> 20, " MiB"));
}

int64_t PageBytes(const LoadOptions& options, const ModelConfig& config) {
  return CachePageBytes(config, options.limits.page_size, CacheType(options));
}

// Sets the limits max_step_sequences, max_encode_tokens and max_step_tokens, with automatic values
// for those that are 0 in `request`. Sets cache_pages to 1; PlanMemory increases it later.
void SetBatchLimits(const LimitRequest& request, const ModelConfig& config, LoadOptions* options) {
  const bool on_gpu = options->device != nullptr;
  const bool job = request.workload == Workload::kJob;
  const int64_t gpu_sequences = !job ? 1024 : config.has_encoder() ? 4096 : 2048;
  const int64_t sequences = on_gpu ? gpu_sequences : (job ? 64 : 256);
  const int64_t tokens = on_gpu ? 16384 : 4096;
  ModelLimits& limits = options->limits;
  limits.max_step_sequences = request.max_running > 0 ? request.max_running : sequences;
  limits.max_encode_tokens = std::max(
      request.max_batch_tokens > 0 ? request.max_batch_tokens : tokens, request.max_input_tokens);
  limits.max_step_tokens = MaxStepTokens(limits, config, on_gpu);
  limits.cache_pages = 1;
}

// Halves max_step_sequences (if at least 64 remain) and max_encode_tokens (if at least
// max_input_tokens remain), but not a limit that the user has set. Computes max_step_tokens anew
// from both (MaxStepTokens). Returns false if neither limit was halved.
bool HalveAutomatic(const LimitRequest& request, const ModelConfig& config, LoadOptions* options) {
  constexpr int64_t kLeastSequences = 64;
  ModelLimits& limits = options->limits;
  bool halved = false;
  if (request.max_batch_tokens == 0 && limits.max_encode_tokens / 2 >= request.max_input_tokens) {
    limits.max_encode_tokens /= 2;
    halved = true;
  }
  if (request.max_running == 0 && limits.max_step_sequences / 2 >= kLeastSequences) {
    limits.max_step_sequences /= 2;
    halved = true;
  }
  limits.max_step_tokens = MaxStepTokens(limits, config, options->device != nullptr);
  return halved;
}

// Returns the memory in bytes that one model may use in total, KV cache included.
int64_t MemoryFor(const LimitRequest& request, const Device* device) {
  const int64_t most =
      request.max_bytes > 0 ? request.max_bytes : std::numeric_limits<int64_t>::max();
  return device == nullptr ? most : std::min(most, device->free_bytes() / request.models);
}

// Sets the options of a model with LoRA adapters. options->adapter_slots is set only if it is 0
// (automatic) and the workload is Workload::kServing. options->merged_weights is set on a GPU, for
// every workload.
absl::Status PlanAdapters(const std::string& directory, const LimitRequest& request,
                          LoadOptions* options, ThreadPool* pool) {
  if (options->adapters.empty() || options->merge_adapter) return absl::OkStatus();
  const auto most = std::max<int64_t>(64, static_cast<int64_t>(options->adapters.size()));
  const bool automatic = options->adapter_slots == 0 && request.workload == Workload::kServing;
  if (automatic) options->adapter_slots = most;
  if (options->device == nullptr) return absl::OkStatus();  // the slots hold only addresses
  LoadOptions one = *options;
  one.adapter_slots = 1;
  one.merged_weights = true;
  QT_ASSIGN_OR_RETURN(const ModelMemory memory, Model::Measure(directory, one, pool));
  const int64_t share = MemoryFor(request, options->device) / 8;
  if (automatic) {
    options->adapter_slots = std::clamp<int64_t>(share / memory.adapters, 1, most);
  }
  options->merged_weights = memory.merged_weights > 0 && memory.merged_weights <= share;
  return absl::OkStatus();
}

// Upper bound in bytes of one model's KV cache in host memory if the user has not set its size: a
// quarter of the memory that the process may use, divided by the number of models.
int64_t HostCacheBytes(const LimitRequest& request) {
  const ProcessMemory memory = ReadProcessMemory();
  return std::min(memory.resident.limit.bytes, memory.address_space.limit.bytes) / 4 /
         request.models;
}

// Returns INVALID_ARGUMENT if the user sets a KV cache size (request.cache_bytes) with more slots
// than 32-bit slot numbers can address.
absl::Status CheckCacheBytes(const LimitRequest& request, const LoadOptions& options,
                             const ModelConfig& config) {
  if (!config.has_decoder()) return absl::OkStatus();
  const int64_t page_bytes = PageBytes(options, config);
  const int64_t most_pages = std::numeric_limits<int32_t>::max() / options.limits.page_size;
  if (request.cache_bytes / page_bytes <= most_pages) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--cache-memory: ", request.cache_bytes >> 20, " MiB is not in [1, ",
                   ((most_pages + 1) * page_bytes - 1) >> 20, "], the range for this model"));
}

// Returns the number of KV cache pages: at most `most_bytes` bytes unless the user sets the size.
int64_t CachePages(const LimitRequest& request, const LoadOptions& options,
                   const ModelConfig& config, int64_t most_bytes) {
  if (!request.decodes) return 1;
  constexpr int64_t kLeastBytes = int64_t{1} << 30;
  const int64_t tokens_each = options.device == nullptr ? 256 : 512;
  const ModelLimits& limits = options.limits;
  const int64_t page_bytes = PageBytes(options, config);
  const int64_t wanted = limits.max_step_sequences * tokens_each / limits.page_size * page_bytes;
  const int64_t bytes = request.cache_bytes > 0
                            ? request.cache_bytes
                            : std::min(std::max(wanted, kLeastBytes), most_bytes);
  return std::max<int64_t>(1, bytes / page_bytes);
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

absl::Status PlanMemory(const std::string& directory, const LimitRequest& request,
                        LoadOptions* options, ThreadPool* pool) {
  QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
  ModelLimits& limits = options->limits;
  SetBatchLimits(request, config, options);
  QT_RETURN_IF_ERROR(PlanAdapters(directory, request, options, pool));
  QT_RETURN_IF_ERROR(CheckCacheBytes(request, *options, config));
  if (options->device == nullptr && request.max_bytes == 0) {
    if (config.has_decoder()) {
      limits.cache_pages = CachePages(request, *options, config, HostCacheBytes(request));
    }
    return absl::OkStatus();
  }
  const int64_t memory = MemoryFor(request, options->device);
  QT_ASSIGN_OR_RETURN(MemoryPlan plan, MeasureMemory(directory, *options, pool));
  while (plan.total() > memory / 2 && HalveAutomatic(request, config, options)) {
    QT_ASSIGN_OR_RETURN(plan, MeasureMemory(directory, *options, pool));
  }
  if (request.max_bytes > 0 && plan.total() > request.max_bytes) {
    return TooLarge(plan, "with one page of keys and values, --max-memory allows",
                    request.max_bytes);
  }
  if (config.has_decoder()) {
    const int64_t left = memory - (plan.total() - plan.model.cache);
    const int64_t automatic =
        options->device == nullptr ? std::min(left, HostCacheBytes(request)) : left / 100 * 85;
    limits.cache_pages = CachePages(request, *options, config, automatic);
    QT_ASSIGN_OR_RETURN(plan, MeasureMemory(directory, *options, pool));
    const int64_t over = plan.total() - memory;
    if (over > 0 && (request.max_bytes > 0 || request.cache_bytes == 0)) {
      const int64_t page_bytes = PageBytes(*options, config);
      const int64_t fewer = (over + page_bytes - 1) / page_bytes;
      limits.cache_pages = std::max<int64_t>(1, limits.cache_pages - fewer);
      QT_ASSIGN_OR_RETURN(plan, MeasureMemory(directory, *options, pool));
    }
  }
  if (options->device != nullptr && plan.total() > options->device->free_bytes()) {
    return TooLarge(plan, "the GPU has free", options->device->free_bytes());
  }
  return absl::OkStatus();
}

std::string DescribeLimits(const LimitRequest& request, const LoadOptions& options,
                           const ModelConfig& config) {
  const auto text = [](const char* name, int64_t value, int64_t requested, const char* unit) {
    return absl::StrCat(name, " ", value, unit, requested == 0 ? " (auto)" : "");
  };
  const ModelLimits& limits = options.limits;
  std::string line =
      text("max-batch-tokens", limits.max_encode_tokens, request.max_batch_tokens, "");
  if (options.adapter_slots > 0) {
    absl::StrAppend(&line, ", ", options.adapter_slots, " adapters at a time");
  }
  if (!config.has_decoder() || !request.decodes) return line;
  const int64_t cache_mib = limits.cache_pages * PageBytes(options, config) >> 20;
  return absl::StrCat(text("max-running", limits.max_step_sequences, request.max_running, ""), ", ",
                      line, ", ", text("cache-memory", cache_mib, request.cache_bytes, " MiB"),
                      options.fp8_cache ? ", cache-dtype fp8" : "");
}

}  // namespace quintet
