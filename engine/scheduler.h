// Who is admitted when: a pure function of the queue, the time and the budgets, in integers.
// Nothing here knows models or text.
//
// Order: the higher class first, then the earlier arrival. A request rises one class for every
// `age_us` it has waited (LOW counts as NORMAL after 30 s, as HIGH after 60 s), and the first in
// order that does not fit holds back all others, so none starves however many small or urgent ones
// arrive.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/request.h"

namespace quintet {

struct QueuedRequest {
  uint64_t id = 0;
  Priority priority = Priority::kNormal;
  int64_t arrival_us = 0;
  int64_t encode_tokens = 0;  // rows of a packed encoder batch
  int64_t pages = 0;          // of the cache, for its whole life
  int64_t sequences = 0;      // rows of a decoder step at most
};

// What is free now.
struct AdmissionBudget {
  int64_t encode_tokens = 0, pages = 0, sequences = 0;
};

class Scheduler {
 public:
  static constexpr int64_t kAgeMicros = 30'000'000;

  explicit Scheduler(int64_t age_us = kAgeMicros) : age_us_(age_us) {}

  // Arrivals come in the order of their time.
  void Add(const QueuedRequest& request);
  bool Remove(uint64_t id);  // false when it is not queued
  int64_t waiting() const { return static_cast<int64_t>(queue_.size()); }

  // Moves requests from the queue to `admitted`, in order, while they fit the budget.
  void Admit(int64_t now_us, AdmissionBudget budget, std::vector<uint64_t>* admitted);

 private:
  int ClassOf(const QueuedRequest& request, int64_t now_us) const;

  int64_t age_us_;
  std::vector<QueuedRequest> queue_;  // by arrival
};

// Deals a step's remaining tokens to the sequences that still read given tokens, first come first
// served: share[i] <= remaining[i], and the sum is min(budget, sum of remaining).
void SharePrefill(int64_t budget, absl::Span<const int64_t> remaining, absl::Span<int64_t> share);

}  // namespace quintet
