// Who is admitted when, and who takes part in which step: pure functions of the queue, the time,
// the budgets and the classes, in integers. Nothing here knows models or text.
//
// Order of admission: the higher class first, then the earlier arrival. A request rises one class
// for every `age_us` it has waited (LOW counts as NORMAL after 30 s, as HIGH after 60 s), and the
// first in order that does not fit holds back all others, so none starves however many small or
// urgent ones arrive.
#pragma once

#include <cstdint>
#include <optional>
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
  // The first in order, or null; valid until the queue changes.
  const QueuedRequest* First(int64_t now_us) const;
  int64_t waiting() const { return static_cast<int64_t>(queue_.size()); }

  // Moves requests from the queue to `admitted`, in order, while they fit the budget.
  void Admit(int64_t now_us, AdmissionBudget budget, std::vector<uint64_t>* admitted);

 private:
  int ClassOf(const QueuedRequest& request, int64_t now_us) const;

  int64_t age_us_;
  std::vector<QueuedRequest> queue_;  // by arrival
};

// What beside decoding is urgent: the highest classes, if any.
struct Urgent {
  std::optional<Priority> encoding;  // in the encoder, or waiting for nothing but the encoder
  std::optional<Priority> waiting;   // for room, which running requests hold
};

// Whose turn the next decoder step is. The most urgent class that runs or is encoded has every
// step; less urgent requests rest, all together, so that its steps have few rows, and come back for
// one step after kLongestRest at most. They do not rest while something more urgent waits for the
// room that they hold. Where all are of one class nobody ever rests.
class StepTurns {
 public:
  // A running request takes part in at least one of any kLongestRest + 1 steps.
  static constexpr int64_t kLongestRest = 3;

  // The least urgent class that takes part in the next step. `running`: the classes of all that
  // could, not empty. A class above all of them: the step is left to the encoder.
  Priority Lowest(absl::Span<const Priority> running, const Urgent& urgent) const;
  // The next step is settled; `rested`: somebody who could have taken part does not.
  void Record(bool rested) { rests_ = rested ? rests_ + 1 : 0; }

 private:
  int64_t rests_ = 0;  // steps in succession without somebody
};

// Deals a step's remaining tokens to the sequences that still read given tokens, first come first
// served: share[i] <= remaining[i], and the sum is min(budget, sum of remaining).
void SharePrefill(int64_t budget, absl::Span<const int64_t> remaining, absl::Span<int64_t> share);

}  // namespace quintet
