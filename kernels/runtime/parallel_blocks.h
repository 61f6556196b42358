// Parallel loops over items that are too small to wake a thread for each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

// Runs body(i) for every i in [0, count) like ThreadPool::ParallelFor, with `block` consecutive
// items as one task.
inline void ForEachInBlocks(ThreadPool* pool, int64_t count, int64_t block,
                            absl::FunctionRef<void(int64_t i)> body) {
  pool->ParallelFor((count + block - 1) / block, [&](int64_t task, int) {
    const int64_t end = std::min(count, (task + 1) * block);
    for (int64_t i = task * block; i < end; ++i) body(i);
  });
}

}  // namespace quintet
