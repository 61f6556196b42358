// One model that the server serves by name: its state, the version (one load of its files) that
// serves, the calls that wait for a version, and what all versions share: admission and metrics.
//
// A call takes a version with Acquire and holds it until it ends. A version is freed when nobody
// holds it any more; therefore a call always ends on the version that admitted it. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admission.h"
#include "server/metrics.h"
#include "server/model_host.h"
#include "server/model_state.h"

namespace quintet {

class ServedModel {
 public:
  // Receives the model version that serves, or an error if there is none. Must not block.
  using OnHost = std::function<void(absl::StatusOr<std::shared_ptr<ModelHost>>)>;

  ServedModel(HostOptions options, std::shared_ptr<ModelMetrics> metrics);
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  const std::string& name() const { return name_; }
  Admission& admission() { return admission_; }
  const std::shared_ptr<ModelMetrics>& metrics() const { return metrics_; }

  struct View {
    ModelState state = ModelState::kUnloaded;
    uint64_t version = 0;                        // 0: none serves
    int64_t retired = 0;                         // versions that still run calls
    bool accepts = false;                        // calls run or wait
    std::shared_ptr<ModelHost> host;             // the version that serves, or null
    std::shared_ptr<const HostOptions> options;  // the configuration of the next load
    std::string failure;                         // why the last load failed; empty: it did not
  };
  View view() const;
  bool accepts() const;

  // The functions from Acquire to waiting() give calls (client requests) a model version.
  //
  // Returns the version that serves new calls. Returns null if the call must Wait for a load in
  // progress, which Acquire may have started. Returns UNAVAILABLE if the model is not loaded.
  absl::StatusOr<std::shared_ptr<ModelHost>> Acquire();
  // Calls `on_host` once, perhaps before Wait returns: with the model version once it is loaded, or
  // with an error if the load fails or `deadline_us` passes. Returns a ticket for StopWaiting.
  uint64_t Wait(int64_t deadline_us, OnHost on_host);
  // Cancels a call of Wait. Returns false if its `on_host` has been called or is about to be.
  bool StopWaiting(uint64_t ticket);
  // Ends the waiting of all calls whose deadline has passed.
  void ExpireWaits(int64_t now_us);
  int64_t waiting() const;

  // Only ModelLoader calls the functions below, except Drain. The first four pass events to
  // ModelLifecycle.
  absl::Status BeginLoad();
  absl::Status BeginReplace();
  absl::Status BeginUnload();
  void BeginDrain();
  // Makes `host` the serving version of the model and passes it to the calls that wait for one.
  void Loaded(std::shared_ptr<ModelHost> host, bool on_gpu);
  // The load has failed: calls that wait get an error, unless an older version serves. `why` is
  // shown to the operator only and may name files.
  void LoadFailed(const absl::Status& why, int64_t now_us);
  // The version that serves has these adapters from now on.
  void AdaptersChanged(std::vector<AdapterHandle> adapters);
  // Records a failed replacement, after the old configuration has been loaded again.
  void NoteFailure(const absl::Status& why);
  void Freed();
  // Sets the options of the next load.
  void Configure(std::shared_ptr<const HostOptions> options);
  // Unloads the model if no call has used it for idle_unload_us. Returns whether it did so.
  bool UnloadIfIdle(int64_t now_us);
  // Returns whether a call has started a load (Acquire) since the last TakeDemand.
  bool TakeDemand();
  // Call before Acquire. Sets a function, which must not block: Acquire calls it to start a load.
  void set_on_demand(std::function<void()> on_demand) { on_demand_ = std::move(on_demand); }
  // Makes the model reject calls from now on, because the server drains.
  void Drain();

 private:
  struct Waiter {
    uint64_t ticket;
    int64_t deadline_us;
    OnHost on_host;
  };

  // mutex_ must be held when the functions below are called.
  absl::Status NotServing() const;
  void Changed();
  std::shared_ptr<ModelHost> Unpublish();

  const std::string name_;
  const std::shared_ptr<ModelMetrics> metrics_;
  Admission admission_;
  std::function<void()> on_demand_;

  mutable std::mutex mutex_;
  ModelLifecycle lifecycle_;
  std::shared_ptr<ModelHost> host_;  // the version that serves
  std::shared_ptr<const HostOptions> options_;
  std::string failure_;
  std::list<Waiter> waiters_;
  uint64_t next_ticket_ = 1;
  int64_t used_us_ = 0;   // when a call has used the model, as far as UnloadIfIdle has seen
  int64_t retry_us_ = 0;  // FAILED: a call starts another load after this time; 0: none does
  bool demanded_ = false, draining_ = false;
};

}  // namespace quintet
