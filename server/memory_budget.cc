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

int64_t MemoryBudget::TurnBytes() {
  int64_t turn = turn_bytes_.load(std::memory_order_relaxed);
  if (turn == 0 || clock_() < turn_end_us_.load(std::memory_order_relaxed)) return turn;
  turn_bytes_.compare_exchange_strong(turn, 0, std::memory_order_relaxed);
  return 0;
}

// Starts a turn for a rejected call of `total` bytes: memory is kept free until its client retries.
// Does nothing while another call has a turn, and for kPauseMicros after a turn that was not used.
void MemoryBudget::BeginTurn(int64_t total) {
  const int64_t now = clock_();
  if (now < next_turn_us_.load(std::memory_order_relaxed)) return;
  int64_t none = 0;
  if (!turn_bytes_.compare_exchange_strong(none, total, std::memory_order_relaxed)) return;
  turn_end_us_.store(now + kTurnMicros, std::memory_order_relaxed);
  next_turn_us_.store(now + kTurnMicros + kPauseMicros, std::memory_order_relaxed);
}

// Ends the turn that keeps `turn` bytes free. Called when a call of nearly that size or more has
// been admitted: the rejected call itself, or another one in its place.
void MemoryBudget::EndTurn(int64_t turn) {
  if (!turn_bytes_.compare_exchange_strong(turn, 0, std::memory_order_relaxed)) return;
  next_turn_us_.store(0, std::memory_order_relaxed);
}

bool MemoryBudget::Take(int64_t bytes, int64_t total) {
  const int64_t small = limit() / kLargeShare;
  const bool large = total >= small;
  const int64_t turn = large ? TurnBytes() : 0;
  const bool kept_out = total < turn - small;
  if (TryAdd(&used_, bytes, limit() - (kept_out ? turn : 0))) {
    if (turn > 0 && !kept_out) EndTurn(turn);
    return true;
  }
  if (large && turn == 0) BeginTurn(total);
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
