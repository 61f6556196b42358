// Memory budget for calls, in bytes, with a limit for the process and one for each connection. A
// call reserves its estimated peak before the server does any work for it, and releases it when the
// last byte of its response has been sent. Thus neither many calls nor clients that do not read can
// exhaust the memory. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace quintet {

class MemoryBudget {
 public:
  // `bytes` is the limit of the process. One connection may hold at most three quarters of it.
  explicit MemoryBudget(int64_t bytes) : limit_(bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  void SetLimit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  int64_t connection_limit() const { return limit() - limit() / 4; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class MemoryReservation;
  std::atomic<int64_t> limit_, used_{0};
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
  // Sets the reservation to `bytes`. RESOURCE_EXHAUSTED: not enough of the budget is free at the
  // moment. INVALID_ARGUMENT: `bytes` exceeds the limit of a connection. An error leaves the
  // reservation unchanged.
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
