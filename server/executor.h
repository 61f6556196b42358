// A thread pool for work that must not block gRPC threads or the engine thread: tokenizing
// requests, writing chunks and building responses. Thread-safe. The executor does not bound its
// queue: admission control bounds the number of calls, and each stream queues at most one task.
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
  const char* name = "executor";  // thread name, at most 15 bytes
  int threads = 1;                // number of threads that run any task
  int short_task_threads = 0;     // number of additional threads that run only short tasks
  Clock clock = MonotonicMicros;
};

// Starts tasks in the order that TaskQueue defines. A task of more than TaskQueue::kMaxShortBytes
// is long; at most `threads` threads run long tasks at the same time. If `short_task_threads` > 0,
// that many more threads run only short tasks, so that a short task never waits for a long one.
class Executor {
 public:
  explicit Executor(const ExecutorOptions& options);
  // Runs all queued tasks, and all tasks that these post meanwhile; then joins the threads.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Queues `task`, which must not throw: an uncaught exception ends the process. Throws
  // std::bad_alloc if the queue cannot grow; the task is then not queued.
  void Post(const TaskTraits& traits, std::function<void()> task);
  // Queues a short task of normal priority.
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
