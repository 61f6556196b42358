// The thread pool must make progress when other processes take its cores away. Tests with busy
// processes and timing would depend on the machine. Instead, these tests stop the workers
// themselves and read the state of every thread from /proc. The only timeout is kTimeout, after
// which a test fails instead of hanging.
#include <sys/syscall.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime/thread_pool.h"
#include "tests/catch.h"

namespace quintet {
namespace {

constexpr std::chrono::seconds kTimeout{60};

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Waits until the condition is true; returns false after kTimeout.
template <typename Condition>
bool WaitUntil(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct ThreadStatus {
  char state = '?';    // S: sleeping
  int64_t ticks = -1;  // CPU time, user + system, in clock ticks
};

ThreadStatus StatusOf(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  file.ignore(1 << 10, ')');
  ThreadStatus status;
  file >> status.state;
  std::string skipped;
  for (int field = 4; field < 14; ++field) file >> skipped;
  int64_t user = -1, system = 0;
  file >> user >> system;
  status.ticks = user + system;
  return status;
}

bool Asleep(pid_t thread) { return StatusOf(thread).state == 'S'; }

bool AllAsleep(const std::vector<pid_t>& threads) {
  return std::all_of(threads.begin(), threads.end(), Asleep);
}

int64_t TicksOf(const std::vector<pid_t>& threads) {
  int64_t ticks = 0;
  for (const pid_t thread : threads) ticks += StatusOf(thread).ticks;
  return ticks;
}

// The thread ids of the workers of a pool, reported by the workers themselves.
std::vector<pid_t> WorkersOf(ThreadPool& pool) {
  std::vector<pid_t> threads(static_cast<size_t>(pool.threads()));
  std::atomic<int> arrived{0};
  pool.ParallelFor(pool.threads(), [&](int64_t, int thread) {
    threads[static_cast<size_t>(thread)] = ThisThread();
    ++arrived;
    WaitUntil([&] { return arrived == pool.threads(); });  // so that each thread runs one task
  });
  threads.erase(threads.begin());  // the caller
  return threads;
}

std::atomic<int> frozen{0};
std::atomic<bool> thaw{false};

// Signal handler that stops a thread until the test sets `thaw`, as if it were descheduled.
void StopUntilThaw(int) {
  frozen.fetch_add(1);
  while (!thaw.load()) usleep(1000);
  frozen.fetch_sub(1);
}

TEST_CASE("a loop finishes even if all workers are stopped", "[thread_pool]") {
  ThreadPool pool(4);
  const std::vector<pid_t> workers = WorkersOf(pool);
  REQUIRE(WaitUntil([&] { return AllAsleep(workers); }));
  thaw = false;
  struct sigaction action = {}, previous;
  action.sa_handler = StopUntilThaw;
  action.sa_flags = SA_RESTART;
  REQUIRE(sigaction(SIGUSR1, &action, &previous) == 0);
  for (const pid_t worker : workers) {
    REQUIRE(syscall(SYS_tgkill, getpid(), worker, SIGUSR1) == 0);
  }
  CHECK(WaitUntil([] { return frozen == 3; }));

  std::atomic<int64_t> sum{0};
  std::atomic<bool> done{false};
  std::thread caller([&] {
    for (int round = 0; round < 100; ++round) {
      pool.ParallelFor(100, [&](int64_t task, int thread) { sum += thread == 0 ? task : 0; });
    }
    done = true;
  });
  CHECK(WaitUntil([&] { return done.load(); }));
  CHECK(frozen == 3);
  thaw = true;
  caller.join();
  CHECK(sum == 100 * 4950);

  CHECK(WaitUntil([] { return frozen == 0; }));
  sigaction(SIGUSR1, &previous, nullptr);
  std::atomic<int> arrived{0};
  std::atomic<bool> all_arrived{true};
  pool.ParallelFor(4, [&](int64_t, int) {
    arrived.fetch_add(1);
    if (!WaitUntil([&] { return arrived == 4; })) all_arrived = false;
  });
  CHECK(all_arrived);
}

TEST_CASE("other threads process tasks while workers are stuck, and the waiting caller sleeps",
          "[thread_pool]") {
  ThreadPool pool(3);
  const pid_t caller = ThisThread();
  constexpr int64_t kTasks = 500;
  std::atomic<int64_t> done{0};
  std::atomic<int> stuck{0};
  std::atomic<bool> others_done{true}, caller_slept{true};
  pool.ParallelFor(kTasks, [&](int64_t, int thread) {
    if (thread == 0) {
      // Thread 0 is the caller of ParallelFor, which takes part in the work. It waits here until
      // both workers hold a task, because otherwise it could run all tasks itself.
      if (stuck < 2 && !WaitUntil([&] { return stuck == 2; })) others_done = false;
    } else {
      // Each worker stays in its first task until all tasks but these two are done and the caller
      // of ParallelFor sleeps.
      ++stuck;
      if (!WaitUntil([&] { return done >= kTasks - 2; })) others_done = false;
      if (!WaitUntil([&] { return Asleep(caller); })) caller_slept = false;
    }
    ++done;
  });
  CHECK(done == kTasks);
  CHECK(others_done);
  CHECK(caller_slept);
}

TEST_CASE("idle workers use no CPU time", "[thread_pool]") {
  ThreadPool pool(5);
  const std::vector<pid_t> workers = WorkersOf(pool);
  const auto idle_for_a_while = [&] {
    if (!AllAsleep(workers)) return false;
    const int64_t before = TicksOf(workers);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return AllAsleep(workers) && TicksOf(workers) == before;
  };
  for (int round = 0; round < 3; ++round) {
    pool.ParallelFor(50, [](int64_t, int) { sched_yield(); });
    CHECK(WaitUntil(idle_for_a_while));
  }
}

}  // namespace
}  // namespace quintet
