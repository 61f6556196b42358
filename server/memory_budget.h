// Bytes that calls may hold, for the process and for each connection. A call reserves its
// estimated peak before any work is done for it and gives it back when its last byte has left, so
// that neither many calls nor clients that read nothing can exhaust the memory. Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace quintet {

class MemoryBudget {
 public:
  // No connection may hold more than three quarters of `bytes`.
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

// Bytes that one connection holds of a budget.
using ConnectionBytes = std::atomic<int64_t>;

// Bytes of one call, zero at first. Released on destruction. Not thread safe.
class MemoryReservation {
 public:
  // `budget` outlives the reservation.
  MemoryReservation(MemoryBudget* budget, std::shared_ptr<ConnectionBytes> connection)
      : budget_(budget), connection_(std::move(connection)) {}
  ~MemoryReservation() { Shrink(0); }
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  int64_t bytes() const { return bytes_; }
  // Sets the reservation to `bytes`. RESOURCE_EXHAUSTED when that much is not free at the moment,
  // INVALID_ARGUMENT when it is above what one connection may ever hold; unchanged then.
  absl::Status Resize(int64_t bytes);
  // Lowers it to `bytes`; never raises it.
  void Shrink(int64_t bytes);

 private:
  void Add(int64_t bytes);

  MemoryBudget* const budget_;
  const std::shared_ptr<ConnectionBytes> connection_;
  int64_t bytes_ = 0;
};

}  // namespace quintet
