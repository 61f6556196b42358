// One version of a served model, that is, one load: tokenizer, and for each of its devices weights,
// engine and engine thread. A
// call runs on one version from its admission to its end. Versions come and go while the server
// runs (model_loader.h); what they share is in ServedModel (served_model.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter_registry.h"
#include "engine/engine.h"
#include "engine/engine_group.h"
#include "engine/memory_plan.h"
#include "engine/placement.h"
#include "models/config/sentence_modules.h"
#include "models/model.h"
#include "models/tokenizers/tokenizer.h"
#include "server/metrics.h"
#include "server/server_memory.h"
#include "server/text_templates.h"
#include "server/weights_hash.h"

namespace quintet {

struct HostOptions {
  std::string name;
  std::string directory;  // or file (FindModel)
  std::string tokenizer;  // directory, file or hub id; empty: that of the model
  LoadOptions load;       // its limits come from `limits`, the device from `placement`
  Placement placement;    // as returned by ResolveAutoDevice
  // Loads the model. Tests replace this function to serve a stub.
  std::function<absl::StatusOr<std::unique_ptr<Model>>(
      const std::string& directory, const LoadOptions& options, ThreadPool* pool)>
      load_model = Model::Load;
  LimitRequest limits;  // sets load.limits
  EngineLimits engine;  // max_running_sequences comes from `limits`
  DecodingLimits decoding;
  // Whether unsupported fields of generation_config.json are ignored with a warning. Otherwise they
  // are an error.
  bool ignore_generation_fields = false;
  // `prompts` maps names to texts that Encode can put before its inputs. They are added to the
  // prompts of the model directory and replace those of the same name. `default_prompt` is the name
  // of the prompt for calls that name no prompt; unset: the default of the model directory.
  std::map<std::string, std::string> prompts;
  std::optional<std::string> default_prompt;
  TextTemplates templates;    // for the HTTP API
  bool vllm_metrics = false;  // also export the metrics under their vLLM names
  std::string version;        // version of this program, for the metric build_info
  // After this time without a call the model is unloaded; the next call loads it again. 0: never.
  int64_t idle_unload_us = 0;
  int engines = 1;  // on a CPU, each with an equal part of the cores and of the pool's threads
};

// Whether two configurations of a model are equal except for its adapters, so that the model need
// not be loaded again. limits.models is not compared: it depends on the other models.
bool SameSettings(const HostOptions& a, const HostOptions& b);

class ModelHost {
 public:
  // `pool` must outlive the host. All versions of a model share its metrics.
  ModelHost(HostOptions options, ThreadPool* pool, std::shared_ptr<ModelMetrics> metrics);
  // Stops the engine thread of this version. Calls that are still running end with CANCELLED.
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Reads the configuration and the tokenizer and opens the device, but does not read the weights.
  // Returns how many bytes of host memory Load will take. Must be called once.
  absl::StatusOr<ModelHostMemory> Prepare();
  // Loads the weights, warms the model up and starts the engine thread. Must be called once, after
  // Prepare has succeeded; blocks. `encoder_cache_bytes` must not exceed the value in the options.
  absl::Status Load(int64_t encoder_cache_bytes);

  // Returns one line for the log: device, weight type, time that loading took, memory and capacity.
  std::string Summary() const;

  // The options with which the version was loaded. Its adapters may have changed since.
  const HostOptions& options() const { return options_; }
  // The options that load what serves now.
  HostOptions current_options() const;
  // The number of this version (model_state.h). Set before any call uses the version; 0 until then.
  uint64_t version() const { return version_; }
  void set_version(uint64_t version) { version_ = version; }
  // What Prepare has planned: memory, and the limits of batches and of the KV cache.
  const MemoryPlan& plan() const { return plan_; }
  const ModelLimits& planned_limits() const { return replicas_[0]->load.limits; }
  double load_seconds() const { return load_seconds_; }

  // The functions below must not be called before Load has succeeded. For thread safety see the
  // classes that they return.
  EngineGroup& engine() { return *engines_; }
  const EngineGroup& engine() const { return *engines_; }
  // Returns the ordinals of the GPUs on which the engines run.
  std::vector<int> gpus() const;
  // Number of engines. Each has the limits of model().
  int64_t engines() const { return static_cast<int64_t>(replicas_.size()); }
  // Returns null if the model directory has no tokenizer.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const ModelConfig& config() const { return model().config(); }
  const Model& model() const { return *replicas_[0]->model; }
  const GenerationDefaults& defaults() const { return defaults_; }
  // The pooling and later modules of a sentence-transformers directory. Null if the model directory
  // has no modules.json.
  const SentenceModules* modules() const { return modules_.get(); }
  // The adapters that calls can name.
  const AdapterRegistry& adapters() const { return adapters_; }
  // How many adapters requests can use at the same time.
  int64_t adapter_slots() const;
  // Returns the adapters of `sources`. Reads only adapters that are new or have changed. Returns
  // the errors of CheckAdapterNames and Model::ReadAdapter. Blocks.
  absl::StatusOr<std::vector<AdapterHandle>> ReadAdapters(
      std::span<const AdapterSource> sources) const;
  void SetAdapters(std::vector<AdapterHandle> adapters) { adapters_.Set(std::move(adapters)); }
  ModelMetrics& metrics() { return *metrics_; }
  const ModelMetrics& metrics() const { return *metrics_; }

  // SHA-256 of the model's weight files, which GetModelInfo returns. Empty until it has been
  // computed.
  std::string weights_sha256() const { return weights_hash_->value(); }

  // Adds to the metrics what the engines have counted since the last CollectMetrics, and sets the
  // metrics of each engine. Adds their gauges (running requests, KV cache pages) to *sum.
  void CollectMetrics(EngineCounters* sum);
  // Those of EngineGroup; one unset value before the engines have started.
  std::vector<std::optional<uint64_t>> heartbeats() const;

 private:
  // The model on one device.
  struct Replica {
    explicit Replica(ModelMetrics* metrics) : step_metrics(metrics) {}
    std::unique_ptr<Device> device;    // null: the CPU
    std::vector<int> cpus;             // of the engine's threads; empty: any
    LoadOptions load;                  // options_.load, completed for this device
    std::unique_ptr<ThreadPool> pool;  // null: the pool of all models
    StepMetrics step_metrics;
    std::unique_ptr<Model> model;
    std::unique_ptr<Engine> engine;
  };
  absl::Status LoadReplica(int64_t encoder_cache_bytes, Replica* replica);
  // Checks generation_config.json for fields that Quintet does not support. Returns an error if
  // there are any, or only logs warnings if options_.ignore_generation_fields is set. Skips models
  // without a language-model head, which do not use that file.
  absl::Status CheckDefaults() const;
  absl::StatusOr<ModelHostMemory> ReadFiles();
  // Loads the tokenizer, if there is one.
  absl::Status ReadTokenizer(const ModelConfig& config);
  // Adds options_.prompts to the prompts of the model directory, which are in modules_, and sets
  // the default prompt.
  absl::Status AddPrompts(const ModelConfig& config);
  absl::Status LoadEngines(int64_t encoder_cache_bytes);

  const HostOptions options_;
  MemoryPlan plan_;  // of one replica; set by Prepare
  double load_seconds_ = 0;
  std::atomic<uint64_t> version_{0};  // atomic: CollectMetrics may run before it is set
  ThreadPool* const pool_;
  const std::shared_ptr<ModelMetrics> metrics_;
  std::mutex collect_mutex_;
  EngineCounters collected_;  // values that the metrics already include; guarded by collect_mutex_
  AdapterRegistry adapters_;  // every replica takes these
  std::unique_ptr<const Tokenizer> tokenizer_;
  GenerationDefaults defaults_;
  std::unique_ptr<const SentenceModules> modules_;
  std::vector<std::unique_ptr<Replica>> replicas_;  // one for each device
  std::unique_ptr<WeightsHash> weights_hash_;
  std::unique_ptr<EngineGroup> engines_;
};

}  // namespace quintet
