#include "server/memory_budget.h"

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

// Adds `bytes` to `used` and returns true, unless the sum would exceed `limit`.
bool TryAdd(std::atomic<int64_t>* used, int64_t bytes, int64_t limit) {
  int64_t seen = used->load(std::memory_order_relaxed);
  do {
    if (bytes > limit - seen) return false;
  } while (!used->compare_exchange_weak(seen, seen + bytes, std::memory_order_relaxed));
  return true;
}

std::string MiB(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

}  // namespace

bool MemoryBudget::Take(int64_t bytes, int64_t total) {
  if (total >= limit() / kLargeShare) return TakeLarge(bytes, total);
  return TryAdd(&used_, bytes, limit());
}

bool MemoryBudget::TakeLarge(int64_t bytes, int64_t total) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = clock_();
  const bool turn = now < turn_end_us_;
  // A turn keeps memory free for a large call that was rejected: large calls that need less may not
  // use this memory. A call that needs about as much, or more, may: it is probably the rejected
  // call itself, retried. The admission of such a call ends the turn.
  const bool kept_out = turn && total < turn_bytes_ - limit() / kLargeShare;
  if (TryAdd(&used_, bytes, limit() - (kept_out ? turn_bytes_ : 0))) {
    if (turn && !kept_out) turn_end_us_ = next_turn_us_ = now;
    return true;
  }
  if (!turn && now >= next_turn_us_) {
    turn_bytes_ = total;
    turn_end_us_ = now + kTurnMicros;
    next_turn_us_ = turn_end_us_ + kPauseMicros;
  }
  return false;
}

void MemoryReservation::Add(int64_t bytes) {
  budget_->Add(bytes);
  connection_->fetch_add(bytes, std::memory_order_relaxed);
  bytes_ += bytes;
}

absl::Status MemoryReservation::Resize(int64_t bytes) {
  if (bytes <= bytes_) {
    Shrink(bytes);
    return absl::OkStatus();
  }
  const int64_t connection_limit = budget_->connection_limit();
  if (bytes > connection_limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("this call needs about ", MiB(bytes), " of memory, and a connection may use ",
                     MiB(connection_limit), ": send fewer or shorter inputs"));
  }
  const int64_t more = bytes - bytes_;
  if (!TryAdd(connection_.get(), more, connection_limit)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory of this connection: this call needs about ", MiB(bytes), ", limit ",
        MiB(connection_limit), " for all calls of a connection, answers not yet read included"));
  }
  if (!budget_->Take(more, bytes)) {
    connection_->fetch_sub(more, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(absl::StrCat("memory for calls: this call needs about ",
                                                     MiB(bytes), ", ", MiB(budget_->used()), " of ",
                                                     MiB(budget_->limit()), " are in use"));
  }
  bytes_ = bytes;
  return absl::OkStatus();
}

void MemoryReservation::Shrink(int64_t bytes) {
  if (bytes < bytes_) Add(bytes - bytes_);
}

}  // namespace quintet
