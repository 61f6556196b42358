// Splits the rows of an elementwise op over threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

// Calls body(begin, end) in parallel on disjoint ranges that cover [0, rows); a row has
// row_elements values. If all rows together are less than about kElementsPerTask values, one call
// runs on the calling thread, because waking a worker would take longer.
inline void ParallelRows(ThreadPool& pool, int64_t rows, int64_t row_elements,
                         absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  constexpr int64_t kElementsPerTask = 16384;
  const int64_t rows_per_task =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, row_elements));
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  if (tasks <= 1) {
    if (rows > 0) body(0, rows);
    return;
  }
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    body(task * rows_per_task, std::min(rows, (task + 1) * rows_per_task));
  });
}

}  // namespace quintet
