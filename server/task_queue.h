// The order in which an executor starts its tasks. Not thread safe.
//
// Every task is due at its arrival plus a delay that grows with its size and falls with its
// priority; the earliest due task starts first. So shorter and more urgent tasks overtake others,
// but only while they arrive within that delay: no task starves at any load.
//
// Tasks of more than kMaxShortBytes are long: a caller that takes short tasks only never gets one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/request.h"

namespace quintet {

struct TaskTraits {
  Priority priority = Priority::kNormal;
  int64_t cost_bytes = 0;  // input that the task reads, or output that it writes
};

class TaskQueue {
 public:
  using Task = std::function<void()>;

  static constexpr int64_t kMaxShortBytes = int64_t{16} << 10;
  // About the time that tokenizing takes on a slow core: 2 s for a text of 1 MiB.
  static constexpr int64_t kMicrosPerByte = 2;
  static constexpr int64_t kMaxCostBytes = int64_t{4} << 20;  // larger costs count as this

  // How long after its arrival a task is due: no task that arrives later than that precedes it.
  static int64_t DelayMicros(const TaskTraits& traits);

  // Times must not decrease from call to call.
  void Push(int64_t now_us, const TaskTraits& traits, Task task);
  // Removes and returns the earliest due task, of equals the one pushed first; the short ones alone
  // if `short_only`. Null if there is none.
  Task Pop(bool short_only);

  bool empty(bool short_only) const { return short_.empty() && (short_only || long_.empty()); }

 private:
  struct Entry {
    int64_t due_us;
    uint64_t sequence;
    Task task;
  };
  static bool Later(const Entry& a, const Entry& b);

  // Heaps, the first entry is the next one.
  std::vector<Entry> short_, long_;
  uint64_t pushed_ = 0;
};

}  // namespace quintet
