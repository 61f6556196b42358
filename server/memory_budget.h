// Memory budget for calls, in bytes, with a limit for the process and one for each connection. A
// call reserves its estimated peak before the server does any work for it, and releases it when the
// last byte of its response has been sent. Thus neither many calls nor clients that do not read can
// exhaust the memory.
//
// A large call (at least 1/64 of the limit) that is rejected for lack of memory gets a turn:
// for 5 s, large calls that need less memory may not use the memory that the rejected call needs,
// so that its retry succeeds. Without turns, a steady flow of smaller calls would keep it out for
// ever. If no call of about its size or more is admitted in these 5 s, the next turn can begin only
// 25 s later. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "engine/clock.h"

namespace quintet {

class MemoryBudget {
 public:
  // `bytes` is the limit of the process. One connection may hold at most three quarters of it.
  explicit MemoryBudget(int64_t bytes, Clock clock = MonotonicMicros)
      : limit_(bytes), clock_(std::move(clock)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  void SetLimit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  int64_t connection_limit() const { return limit() - limit() / 4; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class MemoryReservation;
  static constexpr int64_t kTurnMicros = 5'000'000, kPauseMicros = 25'000'000;
  // A turn keeps memory free for a large call that was rejected. Calls of less than 1 / kLargeShare
  // of the limit are not large: they never get a turn, and turns do not restrict them.
  static constexpr int64_t kLargeShare = 64;

  // Takes `bytes` of the free memory and returns true, or returns false if too little is free.
  // `total`: all bytes that the calling RPC will have reserved if this succeeds.
  bool Take(int64_t bytes, int64_t total);
  bool TakeLarge(int64_t bytes, int64_t total);
  void Add(int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }

  std::atomic<int64_t> limit_, used_{0};
  const Clock clock_;

  std::mutex mutex_;          // guards the members below
  int64_t turn_bytes_ = 0;    // total bytes of the call whose turn it is
  int64_t turn_end_us_ = 0;   // the turn ends at this time of clock_; in the past: no turn
  int64_t next_turn_us_ = 0;  // the next turn may begin at this time of clock_
};

// The bytes that all calls of one connection have reserved.
using ConnectionBytes = std::atomic<int64_t>;

// The bytes that one call has reserved, initially zero. The destructor releases them. Not
// thread-safe.
class MemoryReservation {
 public:
  // `budget` must outlive the reservation.
  MemoryReservation(MemoryBudget* budget, std::shared_ptr<ConnectionBytes> connection)
      : budget_(budget), connection_(std::move(connection)) {}
  ~MemoryReservation() { Shrink(0); }
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  int64_t bytes() const { return bytes_; }
  // Sets the reservation to `bytes`. Returns RESOURCE_EXHAUSTED if too little of the budget is free
  // at the moment, INVALID_ARGUMENT if `bytes` exceeds the limit of a connection. An error leaves
  // the reservation unchanged.
  absl::Status Resize(int64_t bytes);
  // Lowers the reservation to `bytes`. Does nothing if it is already lower.
  void Shrink(int64_t bytes);

 private:
  void Add(int64_t bytes);

  MemoryBudget* const budget_;
  const std::shared_ptr<ConnectionBytes> connection_;
  int64_t bytes_ = 0;
};

}  // namespace quintet
