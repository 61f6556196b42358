#include "tools/load/event_queue.h"

#include <chrono>
#include <utility>

namespace quintet {

void EventQueue::OnTokens(uint64_t id, int64_t tokens, int64_t at_us) {
  if (tokens > 0) Add({.id = id, .at_us = at_us, .tokens = tokens, .end = {}});
}

void EventQueue::OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) {
  Add({.id = id, .at_us = at_us, .end = end});
}

void EventQueue::Add(Event event) {
  bool first;
  {
    const std::lock_guard lock(mutex_);
    first = events_.empty();
    events_.push_back(std::move(event));
  }
  if (first) added_.notify_one();
}

size_t EventQueue::PassTo(LoadObserver* observer, int64_t timeout_us) {
  passing_.clear();
  {
    std::unique_lock lock(mutex_);
    if (timeout_us > 0) {
      added_.wait_for(lock, std::chrono::microseconds(timeout_us),
                      [this] { return !events_.empty(); });
    }
    passing_.swap(events_);
  }
  for (const Event& event : passing_) {
    if (event.tokens > 0) {
      observer->OnTokens(event.id, event.tokens, event.at_us);
    } else {
      observer->OnEnd(event.id, event.end, event.at_us);
    }
  }
  return passing_.size();
}

}  // namespace quintet
