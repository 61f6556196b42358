// The engines of one model on several devices. Each runs in a thread of its own, and a request goes
// to the engine that has the fewest unfinished requests and sequences. If the device of an engine
// fails, its requests end as Engine::status says, and later ones go to the other engines, if CUDA
// lets them work: after a fault of a kernel, no GPU of the process can usually be used any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace quintet {

class EngineGroup {
 public:
  // Called by the thread of engine `index` when its device has failed.
  using OnFailure = std::function<void(size_t index, const absl::Status& status)>;

  struct Member {
    Engine* engine = nullptr;  // must outlive the group
    std::vector<int> cpus;     // on which its thread runs (RunOnCpus); empty: any
  };
  // Starts the threads of `members`, at least one.
  EngineGroup(std::vector<Member> members, OnFailure on_failure);
  ~EngineGroup() { Stop(); }
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  // As Engine::Submit and Cancel. Thread safe.
  absl::StatusOr<RequestId> Submit(Request request);
  void Cancel(RequestId id);
  struct State {
    bool works = true;  // false after its device has failed
    EngineCounters counters;
  };
  // One for each engine. Thread safe.
  std::vector<State> states() const;
  // Returns the sums over all engines of `states`.
  static EngineCounters Sum(const std::vector<State>& states);
  // For each engine the number of iterations of its thread, which grows at least every 100 ms
  // unless a step takes longer. Unset before the thread's first iteration, and after a failure of
  // the device while another engine works. Thread safe.
  std::vector<std::optional<uint64_t>> heartbeats() const;
  // Stops the threads between two steps. Unfinished requests stay in their engines. May be
  // repeated.
  void Stop();

 private:
  struct Runner {
    explicit Runner(Member m) : member(std::move(m)) {}
    Engine& engine() const { return *member.engine; }
    const Member member;
    std::atomic<uint64_t> heartbeats{0};
    std::thread thread;
  };
  void Run(size_t index);

  const OnFailure on_failure_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> turn_{0};  // which engine gets the next request if all have equally many
};

}  // namespace quintet
