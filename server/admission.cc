#include "server/admission.h"

namespace quintet {

Admission::Held Admission::Total() const {
  Held total;
  for (const Held& held : held_) {
    total.requests += held.requests;
    total.tokens += held.tokens;
  }
  return total;
}

void Admission::SetLimits(int64_t max_requests, int64_t max_tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  max_requests_ = max_requests;
  max_tokens_ = max_tokens;
}

Admission::Reservation Admission::TryReserve(int64_t requests, int64_t tokens, Priority priority) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Held total = Total();
  Held& own = held_[static_cast<size_t>(priority)];
  const bool leaves_room = priority == Priority::kLow && total.requests > 0;
  const int64_t max_requests = leaves_room ? max_requests_ - max_requests_ / 4 : max_requests_;
  const int64_t max_tokens = leaves_room ? max_tokens_ - max_tokens_ / 4 : max_tokens_;
  const bool fits = total.requests + requests <= max_requests &&
                    (total.requests == 0 || total.tokens + tokens <= max_tokens);
  const bool fits_share = own.requests + requests <= max_requests_ / kShares &&
                          own.tokens + tokens <= max_tokens_ / kShares;
  if (!fits && !fits_share) return {};
  own.requests += requests;
  own.tokens += tokens;
  Reservation reservation;
  reservation.owner_ = this;
  reservation.priority_ = priority;
  reservation.requests_ = requests;
  reservation.tokens_ = tokens;
  return reservation;
}

void Admission::Change(Priority priority, int64_t requests, int64_t tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  Held& held = held_[static_cast<size_t>(priority)];
  held.requests += requests;
  held.tokens += tokens;
}

int64_t Admission::requests() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Total().requests;
}

int64_t Admission::tokens() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Total().tokens;
}

void Admission::Reservation::Correct(int64_t tokens) {
  if (owner_ == nullptr) return;
  owner_->Change(priority_, 0, tokens - tokens_);
  tokens_ = tokens;
}

void Admission::Reservation::Release() {
  if (owner_ == nullptr) return;
  owner_->Change(priority_, -requests_, -tokens_);
  owner_ = nullptr;
}

}  // namespace quintet
