// Threads for work that must block neither gRPC's threads nor the engine's: tokenizing requests,
// writing chunks and results. Thread safe. The number of queued tasks is bounded by admission and
// by one task per stream, not here.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/clock.h"
#include "server/task_queue.h"

namespace quintet {

struct ExecutorOptions {
  const char* name = "executor";  // of the threads, at most 15 bytes
  int threads = 1;                // run any task
  int short_task_threads = 0;     // additional threads that run short tasks only
  Clock clock = MonotonicMicros;
};

// Starts tasks in the order of TaskQueue. Long tasks (TaskQueue::kMaxShortBytes) occupy at most
// `threads` threads, so that with `short_task_threads` > 0 a short task never waits for a long one.
class Executor {
 public:
  explicit Executor(const ExecutorOptions& options);
  // Runs all queued tasks, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // `task` must not throw: an exception that leaves it ends the process. Throws std::bad_alloc if
  // the queue cannot grow; the task is then neither queued nor run.
  void Post(const TaskTraits& traits, std::function<void()> task);
  // A short task of normal priority.
  void Post(std::function<void()> task) { Post({}, std::move(task)); }

 private:
  void Run(bool short_only);

  const Clock clock_;
  std::mutex mutex_;
  std::condition_variable wake_any_, wake_short_;
  TaskQueue queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quintet
