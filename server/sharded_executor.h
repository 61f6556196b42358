// Threads with a queue each, for short tasks that many threads post at a high rate, such as writing
// the chunks of streams. Threads that post tasks rarely wait for a worker, because each queue has
// its own lock and a worker takes all tasks of its queue at once. If these tasks took at least
// 100 us, the worker then sleeps for the same time, but at most 20 ms. Under load a stream thus
// posts fewer tasks, each of which writes the tokens of several steps; without load a task starts
// at once. Thread-safe. Like Executor, it does not bound its queues.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quintet {

class ShardedExecutor {
 public:
  // `name`: thread name, at most 15 bytes.
  ShardedExecutor(const char* name, int threads);
  // Runs all queued tasks; then joins the threads. No task may post another one meanwhile.
  ~ShardedExecutor();
  ShardedExecutor(const ShardedExecutor&) = delete;
  ShardedExecutor& operator=(const ShardedExecutor&) = delete;

  // Queues `task`, which must not throw: an uncaught exception ends the process. Tasks with equal
  // keys run one after the other, in the order in which they were posted. Throws std::bad_alloc if
  // the queue cannot grow; the task is then not queued.
  void Post(size_t key, std::function<void()> task);
  // Number of threads. Keys that are equal modulo this number share a thread.
  size_t threads() const { return shards_.size(); }

 private:
  struct Shard {
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<std::function<void()>> queue;
    bool stop = false;
    std::thread thread;
  };
  static void Run(Shard* shard);

  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace quintet
