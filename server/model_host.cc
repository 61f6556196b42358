#include "server/model_host.h"

#include <pthread.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/clock.h"
#include "engine/warm_up.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/adapter_pool.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/safetensors.h"
#include "models/tokenizers/tokenizer_file.h"
#include "server/admission.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

// The longest time that an idle engine thread waits before its next heartbeat.
constexpr int64_t kIdleWaitUs = 100'000;

}  // namespace

bool SameSettings(const HostOptions& a, const HostOptions& b) {
  const auto settings = [](const HostOptions& host) {
    const LimitRequest& limits = host.limits;
    const EngineLimits& engine = host.engine;
    const DecodingLimits& decoding = host.decoding;
    const TextTemplates& text = host.templates;
    const auto model =
        std::tie(host.name, host.directory, host.load.weights, host.load.follow_symlinks,
                 host.placement.device, host.placement.dtype, host.ignore_generation_fields,
                 host.prompts, host.default_prompt, host.idle_unload_us, host.load.adapter_slots);
    const auto sizes =
        std::tie(limits.max_running, limits.max_batch_tokens, limits.cache_bytes, limits.max_bytes,
                 limits.max_input_tokens, engine.max_queue_requests, engine.max_queue_tokens,
                 engine.prefill_share, engine.encoder_cache_bytes, decoding.max_new_tokens,
                 decoding.max_beams, decoding.max_samples, decoding.max_input_tokens);
    const auto templates = std::tie(text.chat_message, text.chat_end, text.rerank, text.rerank_true,
                                    text.rerank_false, text.rerank_target);
    return std::tuple_cat(model, sizes, templates);
  };
  return settings(a) == settings(b);
}

ModelHost::ModelHost(HostOptions options, ThreadPool* pool, std::shared_ptr<ModelMetrics> metrics)
    : options_(std::move(options)),
      pool_(pool),
      metrics_(std::move(metrics)),
      step_metrics_(metrics_.get()) {}

ModelHost::~ModelHost() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  EngineCounters last;
  CollectMetrics(&last);
}

HostOptions ModelHost::current_options() const {
  HostOptions options = options_;
  options.load.adapters = adapters_.sources();
  return options;
}

absl::StatusOr<std::vector<AdapterHandle>> ModelHost::ReadAdapters(
    std::span<const AdapterSource> sources) const {
  QT_RETURN_IF_ERROR(CheckAdapterNames(sources));
  std::vector<AdapterHandle> adapters = adapters_.Unchanged(sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (adapters[i] != nullptr) continue;
    QT_ASSIGN_OR_RETURN(adapters[i], model_->ReadAdapter(sources[i]));
  }
  return adapters;
}

absl::StatusOr<ModelHostMemory> ModelHost::Prepare() {
  return CatchOutOfMemory([this] { return ReadFiles(); });
}

absl::StatusOr<ModelHostMemory> ModelHost::ReadFiles() {
  QT_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(options_.directory));
  QT_RETURN_IF_ERROR(ReadTokenizer(config));
  QT_ASSIGN_OR_RETURN(defaults_, ReadGenerationDefaults(options_.directory));
  QT_RETURN_IF_ERROR(CheckDefaults());
  QT_ASSIGN_OR_RETURN(
      modules_, ReadSentenceModules(options_.directory, config, options_.load.follow_symlinks));
  QT_RETURN_IF_ERROR(AddPrompts(config));
  QT_RETURN_IF_ERROR(CheckAdapterNames(options_.load.adapters));
  load_ = options_.load;
  QT_ASSIGN_OR_RETURN(device_, OpenDevice(options_.placement));
  load_.device = device_.get();
  if (const std::string choice = DescribeAutoDevice(options_.placement, config); !choice.empty()) {
    spdlog::info("model {}: {}", options_.name, choice);
  }
  QT_RETURN_IF_ERROR(PlanMemory(options_.directory, options_.limits, &load_, pool_));
  QT_ASSIGN_OR_RETURN(plan_, MeasureMemory(options_.directory, load_, pool_));
  spdlog::info("model {}: {}", options_.name, DescribeLimits(options_.limits, load_, config));
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
  QT_RETURN_IF_ERROR(CatchOutOfMemory([&] { return LoadEngine(encoder_cache_bytes); }));
  load_seconds_ = static_cast<double>(MonotonicMicros() - begin_us) / 1e6;
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
  adapters_.Set(model_->TakeAdapters());
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
  if (load_.device != nullptr) {
    constexpr int64_t kAdmissions = 16;  // admissions in which all sequences are replaced once
    limits.admission_sequences = std::max<int64_t>(1, limits.max_running_sequences / kAdmissions);
    limits.max_admission_delay_steps = 4;
  }
  // Admission control alone limits the queue. The engine's own limits are set to the largest
  // numbers that admission control lets in, so that the engine never rejects an admitted request.
  limits.max_queue_requests = Admission::WithShares(limits.max_queue_requests);
  limits.max_queue_tokens = Admission::WithShares(limits.max_queue_tokens);
  QT_ASSIGN_OR_RETURN(engine_, Engine::Create(model_.get(), tokenizer_.get(), limits,
                                              MonotonicMicros, &step_metrics_));
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

std::optional<uint64_t> ModelHost::heartbeats() const {
  const uint64_t heartbeats = heartbeats_.load(std::memory_order_relaxed);
  return heartbeats > 0 ? std::optional<uint64_t>(heartbeats) : std::nullopt;
}

void ModelHost::CollectMetrics(EngineCounters* sum) {
  if (engine_ == nullptr) return;
  std::lock_guard<std::mutex> lock(collect_mutex_);
  const EngineCounters now = engine_->counters();
  metrics_->Count(now, collected_);
  collected_ = now;
  sum->running += now.running;
  sum->pages_used += now.pages_used;
  sum->pages_total += now.pages_total;
}

}  // namespace quintet
