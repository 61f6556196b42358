// A pool must not collapse when its neighbours take the cores away. Instead of busy neighbours and
// a clock, whose verdict depends on the machine, these tests take the workers off the cores
// themselves and look at what the kernel says of every thread. The only clock is that of kPatience,
// after which a test has failed rather than hang.
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

#include "catch2/catch.hpp"
#include "kernels/thread_pool.h"

namespace quintet {
namespace {

constexpr std::chrono::seconds kPatience{60};

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// False when the condition does not come about in kPatience.
template <typename Condition>
bool ComesAbout(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct ThreadStatus {
  char state = '?';    // S: asleep until somebody wakes it
  int64_t ticks = -1;  // of CPU time, user and system
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

// The ids of a pool's workers, as they tell them.
std::vector<pid_t> WorkersOf(ThreadPool& pool) {
  std::vector<pid_t> threads(static_cast<size_t>(pool.threads()));
  std::atomic<int> arrived{0};
  pool.ParallelFor(pool.threads(), [&](int64_t, int thread) {
    threads[static_cast<size_t>(thread)] = ThisThread();
    ++arrived;
    ComesAbout([&] { return arrived == pool.threads(); });  // so that each thread runs one task
  });
  threads.erase(threads.begin());  // the caller
  return threads;
}

std::atomic<int> frozen{0};
std::atomic<bool> thaw{false};

// What a neighbour does to a thread, only for as long as the test wants.
void StandStill(int) {
  frozen.fetch_add(1);
  while (!thaw.load()) usleep(1000);
  frozen.fetch_sub(1);
}

TEST_CASE("a loop needs none of the workers", "[thread_pool]") {
  ThreadPool pool(4);
  const std::vector<pid_t> workers = WorkersOf(pool);
  REQUIRE(ComesAbout([&] { return AllAsleep(workers); }));
  thaw = false;
  struct sigaction action = {}, previous;
  action.sa_handler = StandStill;
  action.sa_flags = SA_RESTART;
  REQUIRE(sigaction(SIGUSR1, &action, &previous) == 0);
  for (const pid_t worker : workers) {
    REQUIRE(syscall(SYS_tgkill, getpid(), worker, SIGUSR1) == 0);
  }
  CHECK(ComesAbout([] { return frozen == 3; }));

  std::atomic<int64_t> sum{0};
  std::atomic<bool> done{false};
  std::thread caller([&] {
    for (int round = 0; round < 100; ++round) {
      pool.ParallelFor(100, [&](int64_t task, int thread) { sum += thread == 0 ? task : 0; });
    }
    done = true;
  });
  CHECK(ComesAbout([&] { return done.load(); }));
  CHECK(frozen == 3);
  thaw = true;
  caller.join();
  CHECK(sum == 100 * 4950);

  CHECK(ComesAbout([] { return frozen == 0; }));
  sigaction(SIGUSR1, &previous, nullptr);
  std::atomic<int> arrived{0};
  std::atomic<bool> all_came{true};
  pool.ParallelFor(4, [&](int64_t, int) {
    arrived.fetch_add(1);
    if (!ComesAbout([&] { return arrived == 4; })) all_came = false;
  });
  CHECK(all_came);
}

TEST_CASE("work goes on around a stuck worker, and who waits for it sleeps", "[thread_pool]") {
  ThreadPool pool(3);
  const pid_t caller = ThisThread();
  constexpr int64_t kTasks = 500;
  std::atomic<int64_t> done{0};
  std::atomic<int> stuck{0};
  std::atomic<bool> others_done{true}, caller_slept{true};
  pool.ParallelFor(kTasks, [&](int64_t, int thread) {
    if (thread == 0) {
      // Both workers come, or the caller would do everything.
      if (stuck < 2 && !ComesAbout([&] { return stuck == 2; })) others_done = false;
    } else {
      // Each holds its one task until all the others are done and the caller sleeps.
      ++stuck;
      if (!ComesAbout([&] { return done >= kTasks - 2; })) others_done = false;
      if (!ComesAbout([&] { return Asleep(caller); })) caller_slept = false;
    }
    ++done;
  });
  CHECK(done == kTasks);
  CHECK(others_done);
  CHECK(caller_slept);
}

TEST_CASE("workers with nothing to do take no time from their neighbours", "[thread_pool]") {
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
    CHECK(ComesAbout(idle_for_a_while));
  }
}

}  // namespace
}  // namespace quintet
