#include "kernels/runtime/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/runtime/parallel_blocks.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("ParallelFor runs every task once, on a thread of the pool", "[thread_pool]") {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
      std::atomic<bool> broken{false};
      pool.ParallelFor(tasks, [&](int64_t task, int thread) {
        if (thread < 0 || thread >= threads ||
            busy[static_cast<size_t>(thread)].fetch_add(1) != 0) {
          broken = true;
        }
        runs[static_cast<size_t>(task)].fetch_add(1);
        busy[static_cast<size_t>(thread)].fetch_sub(1);
      });
      CHECK(!broken);
      for (auto& count : runs) REQUIRE(count == 1);
    }
  }
}

TEST_CASE("all tasks have finished when ParallelFor returns", "[thread_pool]") {
  ThreadPool pool(4);
  std::vector<int64_t> plain(64);  // no atomics: tsan reports a task that outlives its loop
  for (int64_t round = 0; round < 5000; ++round) {
    const auto tasks = 1 + round % 64;
    pool.ParallelFor(tasks, [&](int64_t task, int) { plain[static_cast<size_t>(task)] = round; });
    for (int64_t i = 0; i < tasks; ++i) REQUIRE(plain[static_cast<size_t>(i)] == round);
  }
}

TEST_CASE("loops of several callers run one after the other", "[thread_pool]") {
  ThreadPool pool(3);
  int64_t sum[3] = {};  // per pool thread: concurrent loops would race
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        pool.ParallelFor(16, [&](int64_t task, int thread) { sum[thread] += task; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(sum[0] + sum[1] + sum[2] == 4 * 500 * 120);
}

TEST_CASE("sleeping workers wake up", "[thread_pool]") {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than they spin
    std::atomic<int> arrived{0};
    // The loop ends only when all four threads have arrived. It would hang if a thread missed its
    // wakeup.
    pool.ParallelFor(4, [&](int64_t, int) {
      arrived.fetch_add(1);
      while (arrived.load() < 4) sched_yield();
    });
    CHECK(arrived == 4);
  }
}

TEST_CASE("loops are correct while other threads keep every core busy", "[thread_pool]") {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int core = 0; core < cores; ++core) {
    busy.emplace_back([&stop] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(busy.back().native_handle(), sizeof set, &set);
  }
  ThreadPool pool(cores + 1);
  std::vector<int64_t> value(100, 0);
  for (int64_t round = 1; round <= 300; ++round) {
    pool.ParallelFor(100, [&](int64_t task, int) { value[static_cast<size_t>(task)] += round; });
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  for (int64_t v : value) REQUIRE(v == 300 * 301 / 2);
}

TEST_CASE("blocks of items cover every item once") {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    ForEachInBlocks(&pool, count, 16, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
    CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; }));
  }
}

}  // namespace
}  // namespace quintet
