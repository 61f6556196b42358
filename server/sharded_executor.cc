#include "server/sharded_executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/clock.h"
#include "kernels/base/check.h"

namespace quintet {
namespace {

constexpr int64_t kMinRestUs = 100;  // tasks that took less are followed by no rest
constexpr int64_t kMaxRestUs = 20'000;

}  // namespace

ShardedExecutor::ShardedExecutor(const char* name, int threads) {
  QT_CHECK(threads > 0);
  for (int i = 0; i < threads; ++i) {
    Shard* const shard = shards_.emplace_back(std::make_unique<Shard>()).get();
    shard->thread = std::thread([shard] { Run(shard); });
    pthread_setname_np(shard->thread.native_handle(), name);
  }
}

ShardedExecutor::~ShardedExecutor() {
  for (const auto& shard : shards_) {
    {
      std::lock_guard<std::mutex> lock(shard->mutex);
      shard->stop = true;
    }
    shard->wake.notify_one();
    shard->thread.join();
  }
}

void ShardedExecutor::Post(size_t key, std::function<void()> task) {
  Shard* const shard = shards_[key % shards_.size()].get();
  {
    std::lock_guard<std::mutex> lock(shard->mutex);
    shard->queue.push_back(std::move(task));
  }
  shard->wake.notify_one();
}

void ShardedExecutor::Run(Shard* shard) {
  std::vector<std::function<void()>> tasks;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(shard->mutex);
      shard->wake.wait(lock, [&] { return shard->stop || !shard->queue.empty(); });
      if (shard->queue.empty()) return;
      tasks.swap(shard->queue);
    }
    const int64_t begin_us = MonotonicMicros();
    for (std::function<void()>& task : tasks) {
      task();
      task = nullptr;  // what the task refers to is freed before the next one runs
    }
    tasks.clear();
    const int64_t rest_us = std::min(kMaxRestUs, MonotonicMicros() - begin_us);
    if (rest_us >= kMinRestUs) std::this_thread::sleep_for(std::chrono::microseconds(rest_us));
  }
}

}  // namespace quintet
