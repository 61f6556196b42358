// The thread pool: every parallel loop of the process runs here, and nothing else starts compute
// threads.
//
// Idle workers spin briefly and then sleep, so an idle pool takes no CPU time from other processes.
// Threads claim one task at a time and the caller runs tasks, too, so a loop does not wait for a
// worker that the system has not yet given a core.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace quintet {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts no worker, and every loop runs on the calling thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Runs body(task, thread) for every task in [0, tasks), in any order, and returns when all are
  // done. `thread` is in [0, threads()), and tasks that run at the same time have different values
  // of `thread`, so it can index per-thread scratch. Which thread runs which task is not fixed, so
  // no result may depend on `thread`. Thread safe: concurrent calls take turns. Bodies must not
  // call ParallelFor. They may throw std::bad_alloc only; the call then throws it once all tasks
  // have ended or been skipped.
  void ParallelFor(int64_t tasks, absl::FunctionRef<void(int64_t task, int thread)> body);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace quintet
