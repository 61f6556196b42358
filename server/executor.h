// A few threads for work that must block neither gRPC's threads nor the engine's: tokenizing
// requests, writing out chunks and results. Thread safe. What is queued is bounded by admission and
// by one entry for each stream, not here.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quintet {

class Executor {
 public:
  // `name`, of at most 15 bytes, is what the system calls the threads.
  Executor(const char* name, int threads);
  // Runs what is queued, then stops.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Post(std::function<void()> task);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quintet
