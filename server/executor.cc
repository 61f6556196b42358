#include "server/executor.h"

#include <pthread.h>

#include <utility>

#include "kernels/base/check.h"

namespace quintet {

Executor::Executor(const ExecutorOptions& options) : clock_(options.clock) {
  QT_CHECK(options.threads > 0);
  for (int i = 0; i < options.threads + options.short_task_threads; ++i) {
    threads_.emplace_back([this, short_only = i >= options.threads] { Run(short_only); });
    pthread_setname_np(threads_.back().native_handle(), options.name);
  }
}

Executor::~Executor() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_any_.notify_all();
  wake_short_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Executor::Post(const TaskTraits& traits, std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.Push(clock_(), traits, std::move(task));
  }
  wake_any_.notify_one();
  if (traits.cost_bytes <= TaskQueue::kMaxShortBytes) wake_short_.notify_one();
}

void Executor::Run(bool short_only) {
  std::condition_variable& wake = short_only ? wake_short_ : wake_any_;
  for (;;) {
    TaskQueue::Task task;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake.wait(lock, [&] { return stop_ || !queue_.empty(short_only); });
      // When the executor stops, the threads for short tasks run long tasks, too. The other threads
      // end as soon as the queue is empty, but a short task that is still running may then post a
      // long task.
      task = queue_.Pop(short_only && !stop_);
      if (task == nullptr) return;
    }
    task();
  }
}

}  // namespace quintet
