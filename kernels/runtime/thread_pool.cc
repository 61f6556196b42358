#include "kernels/runtime/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/runtime/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quintet {
namespace {

inline void CpuPause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until ready() is true or `limit` has passed, and returns ready(). It first spins with pause
// instructions. Later it also yields the core between checks, because the thread that sets the
// awaited state may need this core to run.
template <typename Ready>
bool SpinUntil(Ready ready, std::chrono::microseconds limit) {
  constexpr int kPauses = 256;
  for (int i = 0; i < kPauses; ++i) {
    if (ready()) return true;
    CpuPause();
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      CpuPause();
    }
    sched_yield();
  }
  return ready();
}

constexpr std::chrono::microseconds kSpin{200};

}  // namespace

// Protocol of a loop (one call of ParallelFor). `open`: whether workers may join the loop.
// `inside`: number of workers that are in it or about to check `open`. The caller opens the loop,
// runs tasks, closes the loop and then waits until `inside` is 0. A worker increments `inside` and
// then checks `open`. All these accesses are sequentially consistent, so either the worker sees a
// closed loop and leaves without running a task, or the caller sees the worker and waits for it. A
// late worker may find the next loop open instead and join it, which is correct, too.
struct ThreadPool::State {
  std::mutex turn;  // held by the caller whose loop runs

  alignas(64) std::atomic<uint32_t> epoch{
      0};  // number of loops so far; workers wait for it to change
  std::atomic<bool> open{false};
  std::atomic<bool> stop{false};
  std::atomic<int> sleepers{0};
  const absl::FunctionRef<void(int64_t, int)>* body = nullptr;
  int64_t tasks = 0;
  std::atomic<bool> out_of_memory{false};  // a task's allocation failed

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> inside{0};
  alignas(64) std::atomic<bool> caller_sleeps{false};

  std::mutex sleep;
  std::condition_variable wake_workers;  // with `sleep`: signals a new epoch
  std::condition_variable wake_caller;   // with `sleep`: signals that `inside` is 0
  std::vector<std::thread> workers;

  void Claim(int thread) {
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      try {
        (*body)(task, thread);
      } catch (const std::bad_alloc&) {
        out_of_memory.store(true, std::memory_order_relaxed);
      }
    }
  }

  void Work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      WaitForEpoch(seen);
      if (stop.load(std::memory_order_acquire)) return;
      seen = epoch.load(std::memory_order_acquire);
      inside.fetch_add(1, std::memory_order_seq_cst);
      if (open.load(std::memory_order_seq_cst)) Claim(thread);
      if (inside.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
          caller_sleeps.load(std::memory_order_seq_cst)) {
        std::lock_guard<std::mutex> lock(sleep);
        wake_caller.notify_one();
      }
    }
  }

  void WaitForEpoch(uint32_t seen) {
    const auto changed = [&] { return epoch.load(std::memory_order_seq_cst) != seen; };
    if (SpinUntil(changed, kSpin)) return;
    std::unique_lock<std::mutex> lock(sleep);
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    wake_workers.wait(lock, changed);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  void Announce() {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) == 0) return;
    { std::lock_guard<std::mutex> lock(sleep); }
    wake_workers.notify_all();
  }

  void WaitForWorkers() {
    const auto alone = [&] { return inside.load(std::memory_order_seq_cst) == 0; };
    if (SpinUntil(alone, kSpin)) return;
    std::unique_lock<std::mutex> lock(sleep);
    caller_sleeps.store(true, std::memory_order_seq_cst);
    wake_caller.wait(lock, alone);
    caller_sleeps.store(false, std::memory_order_relaxed);
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  QT_CHECK_GE(threads, 1);
  ApplyCpuIsaLimit();
  state_ = std::make_unique<State>();
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), i] { state->Work(i); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->Announce();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::ParallelFor(int64_t tasks,
                             absl::FunctionRef<void(int64_t task, int thread)> body) {
  if (tasks <= 0) return;
  State& s = *state_;
  std::lock_guard<std::mutex> turn(s.turn);
  if (tasks == 1 || threads_ == 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  s.body = &body;
  s.tasks = tasks;
  s.next.store(0, std::memory_order_relaxed);
  s.out_of_memory.store(false, std::memory_order_relaxed);
  s.open.store(true, std::memory_order_seq_cst);
  s.Announce();
  s.Claim(0);
  s.open.store(false, std::memory_order_seq_cst);
  s.WaitForWorkers();
  if (s.out_of_memory.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

}  // namespace quintet
