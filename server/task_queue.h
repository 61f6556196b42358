// The queue of an Executor, which defines the order in which tasks start. Not thread-safe.
//
// Each task has a due time: its arrival time plus a delay that grows with its size and shrinks with
// its priority. The task with the earliest due time starts first. Thus short and urgent tasks
// overtake others, but a task that arrives after the due time of another cannot overtake it: no
// task starves.
//
// A task of more than kMaxShortBytes is long. Threads that take only short tasks skip long ones.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/request.h"

namespace quintet {

struct TaskTraits {
  Priority priority = Priority::kNormal;
  int64_t cost_bytes = 0;  // size of the input that the task reads or the output that it writes
};

class TaskQueue {
 public:
  using Task = std::function<void()>;

  static constexpr int64_t kMaxShortBytes = int64_t{16} << 10;
  // Delay of a task per byte of its TaskTraits::cost_bytes: about the time that a slow core takes
  // to tokenize a byte. A text of 1 MiB is due 2 s later than an empty one.
  static constexpr int64_t kMicrosPerByte = 2;
  static constexpr int64_t kMaxCostBytes = int64_t{4} << 20;  // larger costs count as this value

  // Returns the time in microseconds from the arrival of a task until it is due. A task that
  // arrives after the due time cannot overtake it.
  static int64_t DelayMicros(const TaskTraits& traits);

  // Adds a task. `now_us` must not decrease from one call to the next.
  void Push(int64_t now_us, const TaskTraits& traits, Task task);
  // Removes and returns the task with the earliest due time, or null if there is none. Among equal
  // due times the first pushed task is returned. If `short_only`, considers only short tasks.
  Task Pop(bool short_only);

  bool empty(bool short_only) const { return short_.empty() && (short_only || long_.empty()); }

 private:
  struct Entry {
    int64_t due_us;
    uint64_t sequence;
    Task task;
  };
  static bool Later(const Entry& a, const Entry& b);

  // A heap of the short tasks and one of the long tasks, both ordered by Later. The first entry of
  // each heap is its task with the earliest due time.
  std::vector<Entry> short_, long_;
  uint64_t pushed_ = 0;
};

}  // namespace quintet
