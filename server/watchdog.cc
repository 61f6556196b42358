#include "server/watchdog.h"

#include <algorithm>
#include <span>

namespace quintet {

int64_t Watchdog::Tick(std::span<const std::optional<uint64_t>> heartbeats) {
  const int64_t now_us = clock_();
  const int64_t tick_us = now_us - last_tick_us_;
  last_tick_us_ = now_us;
  engines_.resize(heartbeats.size());
  bool stalled = false;
  for (size_t i = 0; i < heartbeats.size(); ++i) {
    Engine& engine = engines_[i];
    if (heartbeats[i].has_value() && heartbeats[i] == engine.heartbeats) {
      engine.silent_us += std::min(tick_us, kMaxTickMicros);
    } else {
      engine = {heartbeats[i], 0};
    }
    stalled = stalled || engine.silent_us >= timeout_us_;
  }
  stalled_.store(stalled, std::memory_order_relaxed);
  return tick_us > kMaxTickMicros ? tick_us : 0;
}

}  // namespace quintet
