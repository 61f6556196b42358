#include "server/model_host.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/clock.h"
#include "engine/warm_up.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "models/adapter_pool.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/safetensors.h"
#include "models/tokenizers/tokenizer_file.h"
#include "server/admission.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

std::string DeviceOf(const Device* device) {
  return device == nullptr ? "cpu" : absl::StrCat("cuda:", device->ordinal());
}

}  // namespace

bool SameSettings(const HostOptions& a, const HostOptions& b) {
  const auto settings = [](const HostOptions& host) {
    const LimitRequest& limits = host.limits;
    const EngineLimits& engine = host.engine;
    const DecodingLimits& decoding = host.decoding;
    const TextTemplates& text = host.templates;
    const auto model =
        std::tie(host.name, host.directory, host.load.weights, host.load.follow_symlinks,
                 host.placement.device, host.placement.dtype, host.placement.cache_dtype,
                 host.ignore_generation_fields, host.prompts, host.default_prompt,
                 host.idle_unload_us, host.load.adapter_slots, host.engines);
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
    : options_(std::move(options)), pool_(pool), metrics_(std::move(metrics)) {}

ModelHost::~ModelHost() {
  if (engines_ != nullptr) engines_->Stop();
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
    QT_ASSIGN_OR_RETURN(adapters[i], model().ReadAdapter(sources[i]));
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
  Placement placement = options_.placement;
  QT_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices,
                      OpenDevices(&placement, /*several=*/true));
  LimitRequest limits = options_.limits;
  if (devices[0] == nullptr) {
    devices.resize(static_cast<size_t>(options_.engines));
    limits.models *= options_.engines;
    limits.max_bytes /= options_.engines;
  } else if (options_.engines > 1) {
    return absl::InvalidArgumentError(
        "--engines: only a CPU runs several engines; on GPUs there is one for each of --device");
  }
  for (std::unique_ptr<Device>& device : devices) {
    Replica& replica = *replicas_.emplace_back(std::make_unique<Replica>(metrics_.get()));
    replica.device = std::move(device);
    replica.load = options_.load;
    replica.load.device = replica.device.get();
    if (options_.engines > 1) {
      replica.cpus = CpusOfPart(static_cast<int>(engines()) - 1, options_.engines);
    }
  }
  if (const std::string choice = DescribeAutoDevice(options_.placement, config); !choice.empty()) {
    spdlog::info("model {}: {}", options_.name, choice);
  }
  for (const auto& replica : replicas_) {
    if (replica->device != nullptr) replica->device->Use();
    QT_RETURN_IF_ERROR(PlanMemory(options_.directory, limits, &replica->load, pool_));
  }
  const LoadOptions& load = replicas_[0]->load;
  QT_ASSIGN_OR_RETURN(plan_, MeasureMemory(options_.directory, load, pool_));
  spdlog::info("model {}: {}", options_.name, DescribeLimits(limits, load, config));
  ModelHostMemory memory;
  memory.weights_bytes = plan_.host_weights;
  memory.cache_bytes = plan_.host_cache * engines();
  memory.workspace_bytes = plan_.host_workspace * engines();
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
  QT_RETURN_IF_ERROR(CatchOutOfMemory([&] { return LoadEngines(encoder_cache_bytes); }));
  load_seconds_ = static_cast<double>(MonotonicMicros() - begin_us) / 1e6;
  return absl::OkStatus();
}

std::string ModelHost::Summary() const {
  constexpr double kMib = 1 << 20;
  const ModelLimits& limits = model().limits();
  std::string device = options_.placement.device;
  if (replicas_[0]->device != nullptr) {
    absl::StrAppend(&device, " (", engines() > 1 ? absl::StrCat(engines(), " x ") : "",
                    replicas_[0]->device->name(), ")");
  }
  std::string text = absl::StrFormat("loaded in %.1f s: device %s, dtype %s; weights %.1f MiB, ",
                                     load_seconds_, device, WeightTypeName(options_.load.weights),
                                     static_cast<double>(plan_.model.weights) / kMib);
  if (config().has_decoder()) {
    absl::StrAppend(
        &text, absl::StrFormat("KV cache %.1f MiB%s; capacity %d sequences, %d tokens in "
                               "the cache, ",
                               static_cast<double>(plan_.model.cache) / kMib,
                               options_.load.fp8_cache ? " of fp8" : "", limits.max_step_sequences,
                               limits.cache_pages * limits.page_size));
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

absl::Status ModelHost::LoadReplica(int64_t encoder_cache_bytes, Replica* replica) {
  if (replica->device != nullptr) replica->device->Use();
  if (replica != replicas_[0].get()) replica->load.replica_of = &model();
  ThreadPool* pool = pool_;
  if (!replica->cpus.empty()) {
    RunOnCpus(replica->cpus);  // also the threads that the pool starts
    const int threads = std::max(1, pool_->threads() / options_.engines);
    replica->pool = std::make_unique<ThreadPool>(threads);
    pool = replica->pool.get();
  }
  QT_ASSIGN_OR_RETURN(replica->model, options_.load_model(options_.directory, replica->load, pool));
  QT_RETURN_IF_ERROR(
      WarmUp(replica->model.get(), WarmUpShapes::kAll,
             [](absl::string_view problem) { spdlog::warn("{}", std::string(problem)); }));
  EngineLimits limits = options_.engine;
  limits.encoder_cache_bytes = encoder_cache_bytes / engines();
  limits.max_running_sequences = replica->model->limits().max_step_sequences;
  if (replica->device != nullptr) {
    constexpr int64_t kAdmissions = 16;  // admissions in which all sequences are replaced once
    limits.admission_sequences = std::max<int64_t>(1, limits.max_running_sequences / kAdmissions);
    limits.max_admission_delay_steps = 4;
  }
  // Admission control alone limits the queue. The engine's own limits are set to the largest
  // numbers that admission control lets in, so that the engine never rejects an admitted request.
  limits.max_queue_requests = Admission::WithShares(limits.max_queue_requests);
  limits.max_queue_tokens = Admission::WithShares(limits.max_queue_tokens);
  QT_ASSIGN_OR_RETURN(replica->engine,
                      Engine::Create(replica->model.get(), tokenizer_.get(), limits,
                                     MonotonicMicros, &replica->step_metrics));
  return absl::OkStatus();
}

absl::Status ModelHost::LoadEngines(int64_t encoder_cache_bytes) {
  const auto load = [&](size_t first, size_t last) -> absl::Status {
    std::vector<absl::Status> statuses(replicas_.size());
    std::vector<std::jthread> threads;  // joined even if one of them cannot be started
    for (size_t i = first; i < last; ++i) {
      threads.emplace_back([&, i] {
        statuses[i] =
            CatchOutOfMemory([&] { return LoadReplica(encoder_cache_bytes, replicas_[i].get()); });
      });
    }
    threads.clear();
    absl::Status all;
    for (const absl::Status& status : statuses) all.Update(status);
    return all;
  };
  QT_RETURN_IF_ERROR(load(0, 1));
  adapters_.Set(replicas_[0]->model->TakeAdapters());
  if (!config().logit_scale_warning.empty()) {
    spdlog::warn("model {}: {}", options_.name, config().logit_scale_warning);
  }
  for (const std::string& unused : UnusedFileWarnings(options_.directory)) {
    spdlog::warn("model {}: {}", options_.name, unused);
  }
  QT_RETURN_IF_ERROR(load(1, replicas_.size()));  // they share parts of the first
  std::vector<EngineGroup::Member> engines;
  for (const auto& replica : replicas_) engines.push_back({replica->engine.get(), replica->cpus});
  weights_hash_ = std::make_unique<WeightsHash>(options_.directory, options_.load.follow_symlinks);
  // If the only device fails, the heartbeats stop, and the watchdog ends the process as it does
  // after a stall.
  const auto on_failure = [this](size_t index, const absl::Status& status) {
    spdlog::critical("model {}: {} failed: {}", options_.name,
                     DeviceOf(replicas_[index]->device.get()), std::string(status.message()));
  };
  engines_ = std::make_unique<EngineGroup>(std::move(engines), on_failure);
  return absl::OkStatus();
}

std::vector<int> ModelHost::gpus() const {
  std::vector<int> ordinals;
  for (const auto& replica : replicas_) {
    if (replica->device != nullptr) ordinals.push_back(replica->device->ordinal());
  }
  return ordinals;
}

int64_t ModelHost::adapter_slots() const {
  const int64_t slots = options_.load.adapter_slots;
  return slots > 0 ? slots : static_cast<int64_t>(adapters_.sources().size());
}

std::vector<std::optional<uint64_t>> ModelHost::heartbeats() const {
  if (engines_ == nullptr) return {std::nullopt};
  return engines_->heartbeats();
}

void ModelHost::CollectMetrics(EngineCounters* sum) {
  if (engines_ == nullptr) return;
  std::lock_guard<std::mutex> lock(collect_mutex_);
  const std::vector<EngineGroup::State> states = engines_->states();
  const EngineCounters now = EngineGroup::Sum(states);
  metrics_->Count(now, collected_);
  metrics_->SetEngines(version_, states);
  collected_ = now;
  sum->running += now.running;
  sum->pages_used += now.pages_used;
  sum->pages_total += now.pages_total;
}

}  // namespace quintet
