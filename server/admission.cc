#include "server/admission.h"

namespace quintet {

Admission::Place Admission::TryReserve(int64_t requests, int64_t tokens, Priority priority) {
  uint64_t seen = state_.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t new_requests = Requests(seen) + requests;
    const int64_t new_tokens = Tokens(seen) + tokens;
    const bool leave_room = priority == Priority::kLow && Requests(seen) > 0;
    const int64_t max_requests = leave_room ? max_requests_ - max_requests_ / 4 : max_requests_;
    const int64_t max_tokens = leave_room ? max_tokens_ - max_tokens_ / 4 : max_tokens_;
    if (new_requests > max_requests || (Requests(seen) > 0 && new_tokens > max_tokens)) return {};
    if (state_.compare_exchange_weak(seen, Pack(new_requests, new_tokens),
                                     std::memory_order_relaxed)) {
      Place place;
      place.owner_ = this;
      place.requests_ = requests;
      place.tokens_ = tokens;
      return place;
    }
  }
}

void Admission::Place::Correct(int64_t tokens) {
  if (owner_ == nullptr) return;
  // Unsigned wrap-around makes one addition serve both directions.
  owner_->state_.fetch_add(static_cast<uint64_t>(tokens) - static_cast<uint64_t>(tokens_),
                           std::memory_order_relaxed);
  tokens_ = tokens;
}

void Admission::Place::Release() {
  if (owner_ == nullptr) return;
  owner_->state_.fetch_sub(Pack(requests_, tokens_), std::memory_order_relaxed);
  owner_ = nullptr;
}

}  // namespace quintet
