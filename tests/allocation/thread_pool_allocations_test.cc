// std::bad_alloc in a parallel loop is rethrown in the caller, on whichever thread it occurs.
#include <atomic>
#include <new>

#include "kernels/runtime/thread_pool.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("std::bad_alloc of a task is thrown to the caller, and the pool stays usable") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    for (int64_t failing = 0; failing < 100; failing += 9) {
      const auto body = [failing](int64_t task, int) {
        if (task == failing) throw std::bad_alloc();
      };
      CHECK_THROWS_AS(pool.ParallelFor(100, body), std::bad_alloc);
      std::atomic<int64_t> sum{0};
      pool.ParallelFor(100, [&sum](int64_t task, int) { sum += task; });
      CHECK(sum == 99 * 100 / 2);
    }
  }
}

}  // namespace
}  // namespace quintet
