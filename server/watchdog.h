// Finds engines that have stopped making steps. It measures time in its own ticks, because a gap
// between two of them means that the whole process did not run (SIGSTOP, a VM snapshot, a frozen
// container): that is no stall of an engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/clock.h"

namespace quintet {

class Watchdog {
 public:
  // A tick that comes later than this after the one before counts as this much.
  static constexpr int64_t kMaxTickMicros = 100'000;

  explicit Watchdog(int64_t timeout_us, Clock clock = MonotonicMicros)
      : timeout_us_(timeout_us), clock_(std::move(clock)), last_tick_us_(clock_()) {}

  // To be called more often than every kMaxTickMicros, by one thread. For each engine: how often
  // it has given a sign of life; unset: it does not run and is not watched. Returns how long the
  // process did not run before this tick: 0, or more than kMaxTickMicros.
  int64_t Tick(absl::Span<const std::optional<uint64_t>> heartbeats);

  // Whether an engine was silent for the timeout. Any thread. An engine that recovers is not
  // stalled any more.
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
