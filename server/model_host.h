// One served model: its weights, tokenizer, engine and the engine's thread, its door (admission)
// and its metrics. Loaded in the background, drained at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "models/model.h"
#include "models/tokenizer.h"
#include "server/admission.h"
#include "server/metrics.h"
#include "server/server_memory.h"
#include "server/weights_hash.h"

namespace quintet {

struct HostOptions {
  std::string name;
  std::string directory;
  LoadOptions load;  // cache_pages follows from memory, device from gpu
  int gpu = -1;      // its number; -1: the CPU
  // How the weights are read; tests put models of their own here.
  std::function<absl::StatusOr<std::unique_ptr<Model>>(
      const std::string& directory, const LoadOptions& options, ThreadPool* pool)>
      load_model = Model::Load;
  MemoryBounds memory = {.cache_bytes = 1 << 30};
  EngineLimits engine;
  DecodingLimits decoding;
  bool ignore_generation_fields = false;  // see CheckFollowed
  bool vllm_metrics = false;
  std::string version;  // of this program, for build_info
};

class ModelHost {
 public:
  enum class State : uint8_t { kLoading, kReady, kDraining, kStopped, kFailed };

  // `pool` and `registry` outlive the host.
  ModelHost(HostOptions options, ThreadPool* pool, prometheus::Registry* registry);
  // Stops the engine's thread; calls still running are ended CANCELLED.
  ~ModelHost();
  ModelHost(const ModelHost&) = delete;
  ModelHost& operator=(const ModelHost&) = delete;

  // Reads everything but the weights: configuration, tokenizer, device. Returns the host memory
  // that Load will take. Once; after an error the state is kFailed.
  absl::StatusOr<ModelHostMemory> Prepare();
  // After Prepare: loads the weights and starts the engine's thread. `encoder_cache_bytes`: at most
  // what the options say. Once; blocks. The state is kReady or kFailed afterwards.
  absl::Status Load(int64_t encoder_cache_bytes);

  const HostOptions& options() const { return options_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  bool ready() const { return state() == State::kReady; }
  // Refuses new calls from now on; running ones go on.
  void Drain();
  bool idle() const;

  // After Load; thread safe as their classes say.
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null: the directory has none
  const ModelConfig& config() const { return model_->config(); }
  const Model& model() const { return *model_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  Admission& admission() { return admission_; }
  ModelMetrics& metrics() { return *metrics_; }

  // As in GetModelInfo; empty until it is known.
  std::string weights_sha256() const { return weights_hash_->value(); }

  // Copies the engine's counters into the metrics.
  void CollectMetrics();
  // Number of iterations of the engine thread's loop: it grows at least every 100 ms unless a step
  // takes longer. Unset until it has started.
  std::optional<uint64_t> heartbeats() const;

 private:
  // Refuses a model that generates, and whose generation_config.json has fields that are not
  // followed; models without a language-model head do not read it.
  absl::Status CheckDefaults() const;
  absl::StatusOr<ModelHostMemory> ReadFiles();
  absl::Status LoadEngine(int64_t encoder_cache_bytes);
  void RunEngine();

  const HostOptions options_;
  LoadOptions load_;  // options_.load with what Prepare has settled
  ThreadPool* const pool_;
  std::atomic<State> state_{State::kLoading};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> heartbeats_{0};
  Admission admission_;
  std::unique_ptr<ModelMetrics> metrics_;
  prometheus::Registry* const registry_;
  std::unique_ptr<Device> device_;  // null: the CPU
  std::unique_ptr<Model> model_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  GenerationDefaults defaults_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WeightsHash> weights_hash_;
  std::thread thread_;
};

}  // namespace quintet
