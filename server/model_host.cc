#include "server/model_host.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/clock.h"
#include "engine/warm_up.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/safetensors.h"
#include "models/tokenizers/tokenizer_file.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

// The longest time that an idle engine thread waits before its next heartbeat.
constexpr int64_t kIdleWaitUs = 100'000;

}  // namespace

ModelHost::ModelHost(HostOptions options, ThreadPool* pool, prometheus::Registry* registry)
    : options_(std::move(options)),
      pool_(pool),
      admission_(options_.engine.max_queue_requests, options_.engine.max_queue_tokens),
      registry_(registry) {
  ModelMetrics::Options metrics;
  metrics.model_name = options_.name;
  metrics.vllm_names = options_.vllm_metrics;
  metrics.version = options_.version;
  metrics_ = std::make_unique<ModelMetrics>(metrics, registry_);
}

ModelHost::~ModelHost() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<ModelHostMemory> ModelHost::Prepare() {
  absl::StatusOr<ModelHostMemory> memory = CatchOutOfMemory([this] { return ReadFiles(); });
  if (!memory.ok()) state_.store(State::kFailed, std::memory_order_release);
  return memory;
}

absl::StatusOr<ModelHostMemory> ModelHost::ReadFiles() {
  QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options_.directory));
  QT_RETURN_IF_ERROR(ReadTokenizer(config));
  QT_ASSIGN_OR_RETURN(defaults_, ReadGenerationDefaults(options_.directory));
  QT_RETURN_IF_ERROR(CheckDefaults());
  QT_ASSIGN_OR_RETURN(
      modules_, ReadSentenceModules(options_.directory, config, options_.load.follow_symlinks));
  QT_RETURN_IF_ERROR(AddPrompts(config));
  load_ = options_.load;
  QT_ASSIGN_OR_RETURN(device_, OpenDevice(options_.placement));
  load_.device = device_.get();
  if (const std::string choice = DescribeAutoDevice(options_.placement, config); !choice.empty()) {
    spdlog::info("model {}: {}", options_.name, choice);
  }
  QT_RETURN_IF_ERROR(PlanMemory(options_.directory, options_.limits, &load_, pool_));
  QT_ASSIGN_OR_RETURN(plan_, MeasureMemory(options_.directory, load_, pool_));
  spdlog::info("model {}: {}", options_.name, DescribeLimits(options_.limits, load_, config));
  if (load_.device != nullptr) metrics_->SetGpuMemory(plan_);
  ModelHostMemory memory;
  memory.weights_bytes = plan_.host_weights;
  memory.cache_bytes = plan_.host_cache;
  memory.workspace_bytes = plan_.host_workspace;
  memory.loading_bytes = plan_.host_loading;
  memory.encoder_cache_bytes = options_.engine.encoder_cache_bytes;
  return memory;
}

absl::Status ModelHost::ReadTokenizer(const ModelConfig& config) {
  QT_ASSIGN_OR_RETURN(const std::string path, FindTokenizer(options_.tokenizer, options_.directory,
                                                            options_.load.follow_symlinks));
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer =
      LoadTokenizer(path, FamilyName(config.family));
  if (tokenizer.ok()) {
    tokenizer_ = *std::move(tokenizer);
    return absl::OkStatus();
  }
  const bool may_lack = options_.tokenizer.empty() && absl::IsNotFound(tokenizer.status());
  return may_lack ? absl::OkStatus() : tokenizer.status();
}

absl::Status ModelHost::AddPrompts(const ModelConfig& config) {
  if (options_.prompts.empty() && !options_.default_prompt.has_value()) return absl::OkStatus();
  SentenceModules modules;
  modules.columns = config.d_model;
  if (modules_ != nullptr) modules = *modules_;
  for (const auto& [name, prompt] : options_.prompts) modules.prompts[name] = prompt;
  modules.default_prompt = options_.default_prompt.value_or(modules.default_prompt);
  if (!modules.default_prompt.empty() && modules.prompts.count(modules.default_prompt) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("default-prompt-name: the model has no prompt ",
                                                   Printable(modules.default_prompt)));
  }
  modules_ = std::make_unique<const SentenceModules>(std::move(modules));
  return absl::OkStatus();
}

absl::Status ModelHost::Load(int64_t encoder_cache_bytes) {
  const int64_t begin_us = MonotonicMicros();
  const absl::Status status = CatchOutOfMemory([&] { return LoadEngine(encoder_cache_bytes); });
  if (!status.ok()) {
    state_.store(State::kFailed, std::memory_order_release);
    return status;
  }
  load_seconds_ = static_cast<double>(MonotonicMicros() - begin_us) / 1e6;
  // If draining has started while the model was loading, the state stays kDraining and the model
  // never becomes ready.
  State expected = State::kLoading;
  state_.compare_exchange_strong(expected, State::kReady, std::memory_order_acq_rel);
  metrics_->Ready(ready());
  return absl::OkStatus();
}

std::string ModelHost::Summary() const {
  constexpr double kMib = 1 << 20;
  const ModelLimits& limits = model_->limits();
  std::string device = options_.placement.device;
  if (device_ != nullptr) absl::StrAppend(&device, " (", device_->name(), ")");
  std::string text = absl::StrFormat("loaded in %.1f s: device %s, dtype %s; weights %.1f MiB, ",
                                     load_seconds_, device, WeightTypeName(load_.weights),
                                     static_cast<double>(plan_.model.weights) / kMib);
  if (config().has_decoder()) {
    absl::StrAppend(
        &text, absl::StrFormat("KV cache %.1f MiB; capacity %d sequences, %d tokens in "
                               "the cache, ",
                               static_cast<double>(plan_.model.cache) / kMib,
                               limits.max_step_sequences, limits.cache_pages * limits.page_size));
  } else {
    absl::StrAppend(&text, "capacity ");
  }
  absl::StrAppend(&text, limits.max_encode_tokens, " tokens in a batch");
  return text;
}

absl::Status ModelHost::CheckDefaults() const {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(options_.directory);
  if (!config.ok() || config->head != Head::kLanguageModel) return absl::OkStatus();
  if (!options_.ignore_generation_fields) return CheckGenerationSupported(defaults_);
  for (const std::string& field : defaults_.unsupported_fields) {
    spdlog::warn("model {}: {}: ignored", options_.name, field);
  }
  return absl::OkStatus();
}

absl::Status ModelHost::LoadEngine(int64_t encoder_cache_bytes) {
  QT_ASSIGN_OR_RETURN(model_, options_.load_model(options_.directory, load_, pool_));
  if (!config().logit_scale_warning.empty()) {
    spdlog::warn("model {}: {}", options_.name, config().logit_scale_warning);
  }
  for (const std::string& unused : UnusedFileWarnings(options_.directory)) {
    spdlog::warn("model {}: {}", options_.name, unused);
  }
  QT_RETURN_IF_ERROR(WarmUp(model_.get(), WarmUpShapes::kAll, [](absl::string_view problem) {
    spdlog::warn("{}", std::string(problem));
  }));
  EngineLimits limits = options_.engine;
  limits.encoder_cache_bytes = encoder_cache_bytes;
  limits.max_running_sequences = model_->limits().max_step_sequences;
  // Admission control alone limits the queue. The engine's own limits are set to the most that
  // admission control can hold, so that the engine never rejects an admitted request.
  limits.max_queue_requests = Admission::WithShares(limits.max_queue_requests);
  limits.max_queue_tokens = Admission::WithShares(limits.max_queue_tokens);
  QT_ASSIGN_OR_RETURN(engine_, Engine::Create(model_.get(), tokenizer_.get(), limits,
                                              MonotonicMicros, metrics_.get()));
  metrics_->Loaded(model_->limits().page_size, model_->limits().cache_pages);
  weights_hash_ = std::make_unique<WeightsHash>(options_.directory, options_.load.follow_symlinks);
  thread_ = std::thread([this] { RunEngine(); });
  pthread_setname_np(thread_.native_handle(), "engine");
  return absl::OkStatus();
}

void ModelHost::RunEngine() {
  while (!stop_.load(std::memory_order_relaxed)) {
    heartbeats_.fetch_add(1, std::memory_order_relaxed);
    if (!engine_->Step()) engine_->WaitForWork(kIdleWaitUs);
    // After a failure of the engine this thread ends. The heartbeat counter then stops, and the
    // watchdog ends the process as it does after a stall.
    if (!engine_->status().ok()) return;
  }
}

void ModelHost::Drain() {
  state_.store(State::kDraining, std::memory_order_release);
  metrics_->Ready(false);
}

std::optional<uint64_t> ModelHost::heartbeats() const {
  const uint64_t heartbeats = heartbeats_.load(std::memory_order_relaxed);
  return heartbeats > 0 ? std::optional<uint64_t>(heartbeats) : std::nullopt;
}

bool ModelHost::idle() const {
  if (engine_ == nullptr) return true;
  const EngineCounters counters = engine_->counters();
  return counters.running == 0 && counters.waiting == 0 && admission_.requests() == 0;
}

void ModelHost::CollectMetrics() {
  if (engine_ == nullptr || !(state() == State::kReady || state() == State::kDraining)) return;
  metrics_->Collect(engine_->counters(), admission_.requests(), admission_.tokens());
}

}  // namespace quintet
