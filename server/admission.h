// Admission control for the request queue of one model. A call reserves its share of the queue
// before the server does any work for that call, tokenization included. A call for which there is
// no room in the queue therefore costs the server no more than an error response. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>

#include "engine/request.h"

namespace quintet {

class Admission {
 public:
  Admission(int64_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Changes the limits. Existing reservations stay, even if they exceed the new limits.
  void SetLimits(int64_t max_requests, int64_t max_tokens);

  // The requests and tokens that one call holds in the queue. The destructor releases them.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept { *this = std::move(other); }
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(priority_, other.priority_);
      std::swap(requests_, other.requests_);
      std::swap(tokens_, other.tokens_);
      return *this;
    }
    ~Reservation() { Release(); }
    bool held() const { return owner_ != nullptr; }
    // Replaces the estimated token count by the exact count `tokens`. A larger count is accepted
    // even if the queue then exceeds its token limit.
    void Correct(int64_t tokens);
    void Release();

   private:
    friend class Admission;
    Admission* owner_ = nullptr;
    Priority priority_ = Priority::kNormal;
    int64_t requests_ = 0, tokens_ = 0;
  };

  // Reserves room for `requests` requests with about `tokens` tokens in total. If the limit on
  // requests or the limit on tokens would be exceeded, reserves nothing: held() of the returned
  // object is then false. An empty queue accepts any number of tokens, so that one large request is
  // not rejected forever.
  //
  // No priority class can starve another one. LOW requests are accepted only while all classes
  // together hold at most three quarters of each limit. Exception for every class: its own requests
  // may always hold up to 1 / kShares of each limit, even if the queue is full.
  Reservation TryReserve(int64_t requests, int64_t tokens, Priority priority = Priority::kNormal);

  int64_t requests() const;
  int64_t tokens() const;

  // Returns the largest number of requests (or tokens) that all calls together can hold if their
  // limit is `limit`: the limit, plus, for each priority class, the share of 1 / kShares of the
  // limit that this class may hold even if the queue is full.
  static int64_t WithShares(int64_t limit) { return limit + kClasses * (limit / kShares); }

 private:
  static constexpr int kClasses = 3;
  static constexpr int64_t kShares = 8;  // each class is guaranteed 1/8 of both limits

  struct Held {
    int64_t requests = 0, tokens = 0;
  };
  Held Total() const;
  void Change(Priority priority, int64_t requests, int64_t tokens);

  mutable std::mutex mutex_;
  int64_t max_requests_, max_tokens_;
  std::array<Held, kClasses> held_;  // indexed by Priority
};

}  // namespace quintet
