#include "server/task_queue.h"

#include <algorithm>
#include <utility>

namespace quintet {

int64_t TaskQueue::DelayMicros(const TaskTraits& traits) {
  int64_t delay_us = 0;
  if (traits.priority == Priority::kNormal) delay_us = 2'000'000;
  if (traits.priority == Priority::kLow) delay_us = 4'000'000;
  return delay_us + kMicrosPerByte * std::clamp<int64_t>(traits.cost_bytes, 0, kMaxCostBytes);
}

bool TaskQueue::Later(const Entry& a, const Entry& b) {
  return a.due_us != b.due_us ? a.due_us > b.due_us : a.sequence > b.sequence;
}

void TaskQueue::Push(int64_t now_us, const TaskTraits& traits, Task task) {
  std::vector<Entry>& heap = traits.cost_bytes > kMaxShortBytes ? long_ : short_;
  heap.push_back({now_us + DelayMicros(traits), pushed_++, std::move(task)});
  std::push_heap(heap.begin(), heap.end(), Later);
}

TaskQueue::Task TaskQueue::Pop(bool short_only) {
  if (empty(short_only)) return nullptr;
  const bool from_long =
      !short_only && !long_.empty() && (short_.empty() || Later(short_[0], long_[0]));
  std::vector<Entry>& heap = from_long ? long_ : short_;
  std::pop_heap(heap.begin(), heap.end(), Later);
  Task task = std::move(heap.back().task);
  heap.pop_back();
  return task;
}

}  // namespace quintet
