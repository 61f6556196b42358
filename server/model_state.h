// The state machine of one served model: its states, the events that change them, and which version
// of the model serves. Pure: it knows no threads, clocks, files or engines. ServedModel
// (served_model.h) drives it and holds the versions themselves.
//
//   state      calls                     events
//   UNLOADED   rejected                  BeginLoad -> LOADING
//   LOADING    rejected, or they wait    Loaded -> SERVING, LoadFailed -> FAILED
//   SERVING    run                       BeginReplace -> REPLACING, BeginUnload -> DRAINING,
//                                        GoIdle -> IDLE
//   REPLACING  run on the old version    Loaded, LoadFailed, Kept -> SERVING,
//                                        BeginDrain -> DRAINING
//   DRAINING   rejected (an unload), or  Freed -> UNLOADED or LOADING once no retired version is
//              they wait (a replacement) left
//   IDLE       wait and start a load     Demand, BeginLoad -> LOADING, BeginUnload -> UNLOADED
//   FAILED     rejected or start a load  BeginLoad, Demand -> LOADING, BeginUnload -> UNLOADED
//
// BeginUnload of an IDLE or FAILED model leads to DRAINING if a retired version is left.
//
// A version is one load of the model. Versions are numbered from 1. A version that no longer serves
// is retired: it runs the calls that it has admitted, and is freed afterwards.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace quintet {

enum class ModelState : uint8_t {
  kUnloaded,
  kLoading,
  kServing,
  kReplacing,
  kDraining,
  kIdle,
  kFailed
};

// "UNLOADED", "LOADING", ...
const char* ModelStateName(ModelState state);

// Not thread-safe. Events that return a status come from clients, operators or timers. They return
// FAILED_PRECONDITION if the state does not allow them, ABORTED if another operation is in
// progress; such an error changes nothing. The other events must be allowed (QT_CHECK).
class ModelLifecycle {
 public:
  ModelState state() const { return state_; }
  // The version that new calls run on. 0: none.
  uint64_t version() const { return serving_; }
  // The number of the model version that was loaded last; 0 before the first.
  uint64_t last_version() const { return last_version_; }
  // Number of model versions that are retired (serve no new calls) and not freed.
  int64_t retired() const { return retired_; }
  // Whether calls without a serving version wait: for the load in progress or (IDLE) for a new one.
  bool calls_wait() const { return calls_wait_; }
  // Whether calls are accepted: they run at once or wait.
  bool accepts() const { return serving_ != 0 || calls_wait_; }
  // Whether an operation is in progress.
  bool busy() const;

  absl::Status BeginLoad();
  absl::Status BeginReplace();
  absl::Status BeginUnload();
  // A call has arrived while no version of the model serves: a load begins, and calls wait for it.
  absl::Status Demand();
  // The model was idle for some time: its version takes no more calls. The next call reloads it.
  absl::Status GoIdle();

  // Retires the serving version of the model before its replacement is loaded, because they do not
  // fit into memory together. Calls wait.
  void BeginDrain();
  // The load in progress has succeeded: the new version serves, and the old one is retired.
  void Loaded();
  // The load in progress has failed. If a version of the model serves, it continues to do so.
  void LoadFailed();
  // The change in progress has succeeded without a new version (it changed adapters).
  void Kept();
  // A retired version has been freed.
  void Freed();

 private:
  void Retire();
  absl::Status CheckNotBusy() const;

  ModelState state_ = ModelState::kUnloaded;
  uint64_t serving_ = 0, last_version_ = 0;
  int64_t retired_ = 0;
  bool calls_wait_ = false;
};

}  // namespace quintet
