// Collects the events of requests from many threads for the thread that drives the load.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tools/load/driver.h"

namespace quintet {

class EventQueue final : public LoadObserver {
 public:
  // Any thread may call these two.
  void OnTokens(uint64_t id, int64_t tokens, int64_t at_us) override;
  void OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) override;

  // Waits up to `timeout_us` microseconds until there are events; 0: does not wait. Passes all
  // events to `observer`, in the order in which they were added, and returns their number. Only one
  // thread may call it.
  size_t PassTo(LoadObserver* observer, int64_t timeout_us);

 private:
  struct Event {
    uint64_t id = 0;
    int64_t at_us = 0;
    int64_t tokens = 0;  // 0: the request has ended
    RequestEnd end;
  };
  void Add(Event event);

  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<Event> events_;   // since the last PassTo
  std::vector<Event> passing_;  // only PassTo uses it
};

}  // namespace quintet
