// Loads, replaces and unloads the models of a server while it runs: a thread that executes one
// operation after the other, plans the memory of all versions, and frees unused versions.
//
// If both fit into memory, a replacement is loaded while the old version serves, and takes over as
// soon as it is loaded. If they do not fit, the loader waits for retired versions to be freed. If
// none is left, it retires the serving version before it loads the replacement, and calls wait
// meanwhile; if this load fails, it loads the old configuration again. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/process_memory.h"
#include "server/memory_budget.h"
#include "server/model_directory.h"
#include "server/server_memory.h"

namespace quintet {

struct ModelOutcome {
  absl::Status status;         // its message names no directories
  uint64_t version = 0;        // that serves afterwards; 0: none
  bool drained_first = false;  // the old version was retired before the load
  double load_seconds = 0;     // of the version that serves
};
using ModelDone = std::function<void(const ModelOutcome&)>;

// What the reloaded configuration has changed for one model, and whether that succeeded.
struct ModelChange {
  enum class Action : uint8_t {
    kUnchanged,
    kConfigured,
    kLoaded,
    kReplaced,
    kUnloaded,
    kAdaptersChanged  // of the version that serves
  };
  std::string model;
  Action action = Action::kUnchanged;
  ModelOutcome outcome;
};
// Called with the changes of all models or, if an error left all models unchanged, with this error.
using ConfigurationDone = std::function<void(absl::StatusOr<std::vector<ModelChange>>)>;

// Returns INVALID_ARGUMENT unless all names differ and have 1 to kMaxModelNameBytes bytes of UTF-8.
absl::Status CheckModelNames(const std::vector<HostOptions>& models);

class ModelLoader {
 public:
  struct Options {
    ModelDirectory* directory = nullptr;
    ThreadPool* pool = nullptr;
    prometheus::Registry* registry = nullptr;
    MemoryBudget* memory = nullptr;  // its limit follows the plan
    int64_t max_message_bytes = 0;
    // Reads the configuration again. Null: the server has no configuration to read.
    std::function<absl::StatusOr<std::vector<HostOptions>>()> read_models;
    std::function<void()> changed;  // called after a model has changed its state
  };
  // All pointers in the options must outlive the loader.
  explicit ModelLoader(Options options);
  // Frees all versions of all models. Must not be called while a call runs.
  ~ModelLoader();
  ModelLoader(const ModelLoader&) = delete;
  ModelLoader& operator=(const ModelLoader&) = delete;

  // Puts the models into the ModelDirectory. Must be called once, before LoadAll.
  void Configure(const std::vector<HostOptions>& models);
  // Loads all models; blocks. The error names the model that could not be loaded.
  absl::Status LoadAll();
  // Starts the loader's thread. Must be called once, after LoadAll has succeeded.
  void Start();
  // Makes the loader's thread end. If a load is in progress, returns false at once, without waiting
  // for it.
  bool Stop();
  // Refuses operations from now on.
  void Drain();

  // Operations on one model. Each calls `done` once, perhaps before it returns. Errors: NOT_FOUND
  // if the configuration has no such model; ABORTED if another operation on it is in progress;
  // FAILED_PRECONDITION with the reason LOAD_FAILED; RESOURCE_EXHAUSTED if memory is short.
  //
  // Loads the model if it is not loaded.
  void Load(const std::string& model, ModelDone done);
  // Replaces the serving version by a newly loaded one; loads the model if it is not loaded.
  void Reload(const std::string& model, ModelDone done);
  // Unloads the model if it is loaded. New calls are rejected; calls in progress run to their end.
  void Unload(const std::string& model, ModelDone done);
  // Reads the configuration again, and loads, replaces or unloads the models that have changed.
  // `done` may be null.
  void ReloadConfiguration(ConfigurationDone done);

  // Heartbeats of the engines of all model versions; one unset value for a version that was freed,
  // until another one takes its place.
  std::vector<std::optional<uint64_t>> heartbeats() const;
  // Updates the metrics of all models.
  void CollectMetrics() const;

 private:
  struct Operation;
  struct Version;
  struct Signal;
  struct Configuration;

  enum class Wish : uint8_t { kLoad, kReload, kChangeAdapters, kUnload };

  void Run();
  void Begin(Wish wish, const std::string& name, ModelDone done);
  // Begins an operation if one is needed and allowed. The operation then takes *done and calls it
  // at its end.
  absl::StatusOr<std::shared_ptr<ServedModel>> TryBegin(Wish wish, const std::string& name,
                                                        ModelDone* done);
  // Returns the error that administrators see after a failed load: its message lacks the
  // directories, and its code and reason say whether memory was short.
  static absl::Status LoadError(const absl::Status& status, const HostOptions& options);
  static absl::Status BeginEvent(Wish wish, ServedModel* model, Operation* operation);
  void Push(std::unique_ptr<Operation> operation);
  bool AdvanceOperations();
  // Advances an operation as far as possible. Returns its outcome, or nullopt if it must wait.
  std::optional<ModelOutcome> Advance(Operation* operation);
  std::optional<ModelOutcome> AdvanceReplacement(Operation* operation);
  std::optional<ModelOutcome> AdvanceAfterDrain(Operation* operation);
  std::optional<ModelOutcome> AdvanceAdapters(Operation* operation);
  // Plans the memory of the adapters that `host` is about to have. RESOURCE_EXHAUSTED if they do
  // not fit.
  absl::Status PlanAdapters(const ModelHost& host, std::span<const AdapterHandle> adapters);
  void Finish(Operation* operation, ModelOutcome outcome);
  // Loads a model version. `beside`: the version that serves during the load, or null. Sets *alone
  // to true if the new version does not fit into memory together with `beside` but would fit
  // without it.
  absl::Status LoadVersion(const Operation& operation, const ModelHost* beside, bool* alone);
  void Publish(std::unique_ptr<Version> version);
  // Plans the memory of all existing model versions but `without`, plus `next`. Both may be null.
  absl::StatusOr<ServerMemoryPlan> Plan(const ModelHostMemory* next,
                                        const ModelHost* without) const;
  // Plans the memory for `next` together with `serving`. Returns RESOURCE_EXHAUSTED if they do not
  // fit, or only with a smaller memory budget, encoder cache or (if the limit options are the same)
  // model limit.
  absl::StatusOr<ServerMemoryPlan> PlanBeside(const Version& next, const ModelHost& serving) const;
  int64_t ModelsToShareWith(const ServedModel& model, const HostOptions& options) const;
  void FreeUnused();
  // Whether `operation`, which failed with `status`, must wait for old versions to free memory.
  bool IsBlocked(const absl::Status& status, Operation* operation) const;
  void StartDemanded();
  void UnloadIdle();
  void ApplyConfiguration();
  void ApplyModels(const std::vector<HostOptions>& models,
                   const std::shared_ptr<Configuration>& configuration);
  // Applies the options of one model; null options: the new configuration does not have the model.
  // If `load` is true, a model that is not loaded gets loaded, not only configured.
  void ApplyModel(const std::shared_ptr<ServedModel>& model,
                  std::shared_ptr<const HostOptions> options,
                  const std::shared_ptr<Configuration>& configuration, bool load);
  // Begins the load, replacement or unload that `action`, the change of a model's configuration,
  // requires. Returns false if it requires none, ABORTED if the model is busy. mutex_ must be held.
  absl::StatusOr<bool> BeginChange(const std::shared_ptr<ServedModel>& model,
                                   ModelChange::Action action,
                                   const std::shared_ptr<const HostOptions>& options,
                                   const std::shared_ptr<Configuration>& configuration);
  std::shared_ptr<ServedModel> MakeModel(const HostOptions& options);
  void Remove(const ServedModel* model);

  const Options options_;
  const std::shared_ptr<Signal> signal_;
  ProcessMemory at_start_;  // memory of the process before the models were loaded
  std::map<std::string, std::weak_ptr<ModelMetrics>> metrics_;  // series of a name exist once

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Version>> versions_;  // null: a free index
  std::list<std::unique_ptr<Operation>> operations_;
  std::vector<ConfigurationDone> reloads_;  // requested and not begun
  // Configuration changes of models that are busy; applied later. Null options: remove the model.
  struct Deferred {
    std::shared_ptr<const HostOptions> options;
    std::shared_ptr<Configuration> configuration;
  };
  std::map<std::string, Deferred> deferred_;
  bool draining_ = false;
  int64_t freed_ = 0;  // number of versions freed so far; only the loader's thread uses it

  std::atomic<bool> stop_{false}, loading_{false}, ended_{false};
  std::thread thread_;
};

}  // namespace quintet
