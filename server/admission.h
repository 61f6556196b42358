// The door of one model's queue. A call reserves its place before any work is done for it
// (tokenizing included), by one compare-and-swap, so that a burst costs the server nothing but
// refusals. Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "engine/request.h"

namespace quintet {

class Admission {
 public:
  Admission(int64_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // A held place; gives itself back when it goes, on whichever path.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(requests_, other.requests_);
      std::swap(tokens_, other.tokens_);
      return *this;
    }
    ~Place() { Release(); }
    bool held() const { return owner_ != nullptr; }
    // The tokens turned out to be `tokens`; more than was reserved is taken even past the limit.
    void Correct(int64_t tokens);
    void Release();

   private:
    friend class Admission;
    Admission* owner_ = nullptr;
    int64_t requests_ = 0, tokens_ = 0;
  };

  // A place for `requests` requests of about `tokens` tokens; not held when either limit would be
  // passed. LOW requests leave a quarter of both limits to others, so that a flood of them does not
  // close the door. An empty queue takes any number of tokens, so that a single large request is
  // not refused forever.
  Place TryReserve(int64_t requests, int64_t tokens, Priority priority = Priority::kNormal);

  int64_t requests() const { return Requests(state_.load(std::memory_order_relaxed)); }
  int64_t tokens() const { return Tokens(state_.load(std::memory_order_relaxed)); }

 private:
  // Requests in the upper 24 bits, tokens in the lower 40.
  static constexpr int kTokenBits = 40;
  static int64_t Requests(uint64_t state) { return static_cast<int64_t>(state >> kTokenBits); }
  static int64_t Tokens(uint64_t state) {
    return static_cast<int64_t>(state & ((uint64_t{1} << kTokenBits) - 1));
  }
  static uint64_t Pack(int64_t requests, int64_t tokens) {
    return (static_cast<uint64_t>(requests) << kTokenBits) + static_cast<uint64_t>(tokens);
  }

  const int64_t max_requests_, max_tokens_;
  std::atomic<uint64_t> state_{0};
};

}  // namespace quintet
