// Detects engines that have stopped making steps. The watchdog measures time in its own ticks: a
// gap between two ticks means that the whole process was suspended (SIGSTOP, a VM snapshot, a
// frozen container), which is not a stall of an engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/clock.h"

namespace quintet {

class Watchdog {
 public:
  // The longest time that one tick adds to an engine's time without a heartbeat. A longer gap
  // between two ticks means that the process was suspended.
  static constexpr int64_t kMaxTickMicros = 100'000;

  explicit Watchdog(int64_t timeout_us, Clock clock = MonotonicMicros)
      : timeout_us_(timeout_us), clock_(std::move(clock)), last_tick_us_(clock_()) {}

  // Must be called by one thread, at intervals shorter than kMaxTickMicros. `heartbeats` holds the
  // heartbeat counter of each engine; an unset counter means that the engine is not running and is
  // not watched. If the process was suspended before this tick, returns the time since the previous
  // tick, which is more than kMaxTickMicros; otherwise 0.
  int64_t Tick(std::span<const std::optional<uint64_t>> heartbeats);

  // Returns true if at least one engine is stalled: its heartbeat has not changed for the timeout.
  // An engine whose heartbeat changes again is no longer stalled. May be called from any thread.
  bool stalled() const { return stalled_.load(std::memory_order_relaxed); }

 private:
  struct Engine {
    std::optional<uint64_t> heartbeats;
    int64_t silent_us = 0;
  };

  const int64_t timeout_us_;
  const Clock clock_;
  int64_t last_tick_us_;
  std::vector<Engine> engines_;
  std::atomic<bool> stalled_{false};
};

}  // namespace quintet
