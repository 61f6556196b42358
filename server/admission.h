// Admission to one model's queue. A call reserves its place before any work is done for it
// (tokenizing included), so that a burst costs the server nothing but refusals. Thread safe.
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

  // A held place; released on destruction.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(priority_, other.priority_);
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
    Priority priority_ = Priority::kNormal;
    int64_t requests_ = 0, tokens_ = 0;
  };

  // A place for `requests` requests of about `tokens` tokens; not held when either limit would be
  // exceeded. An empty queue takes any number of tokens, so that a single large request is not
  // refused forever.
  //
  // No class can lock out another: LOW requests leave a quarter of both limits to others, and
  // beyond the limits every class may hold its share of kShares of them.
  Place TryReserve(int64_t requests, int64_t tokens, Priority priority = Priority::kNormal);

  int64_t requests() const;
  int64_t tokens() const;

  // The most that is ever held at a time of `limit`, all shares included.
  static int64_t WithShares(int64_t limit) { return limit + kClasses * (limit / kShares); }

 private:
  static constexpr int kClasses = 3;
  static constexpr int64_t kShares = 8;  // a class's share is an eighth

  struct Held {
    int64_t requests = 0, tokens = 0;
  };
  Held Total() const;
  void Change(Priority priority, int64_t requests, int64_t tokens);

  const int64_t max_requests_, max_tokens_;
  mutable std::mutex mutex_;
  std::array<Held, kClasses> held_;  // by priority
};

}  // namespace quintet
