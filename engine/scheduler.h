// Admission order and step composition: pure functions of the queue, the time, the budgets and the
// classes (priorities), in integers. Nothing here depends on models or text.
//
// Order of admission: the highest class first, within a class by arrival. A waiting class becomes
// overdue when its first request has waited a third of the class's target (kWaitTargetMicros). From
// then on it shares admissions with the highest waiting class and other overdue classes by
// start-time fair queueing: equal parts, each request counted by its dominant share of the
// capacity. The next request in order holds back all others until it fits, so that small requests
// cannot starve a large one.
//
// So no class starves at any load of the others. A class meets its target as long as its own
// requests need no more than its part of the capacity, and running requests, which are never
// preempted, end within a few seconds.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/request.h"

namespace quintet {

constexpr int kPriorities = 3;

struct QueuedRequest {
  uint64_t id = 0;
  Priority priority = Priority::kNormal;
  int64_t arrival_us = 0;
  int64_t encode_tokens = 0;  // rows of a packed encoder batch
  int64_t pages = 0;          // of the cache, for its whole life
  int64_t sequences = 0;      // rows of a decoder step at most
};

// What is free now, or the capacity.
struct AdmissionBudget {
  int64_t encode_tokens = 0, pages = 0, sequences = 0;
};

class Scheduler {
 public:
  // How long a request may wait for its start, whatever higher classes send. By class, from LOW to
  // HIGH; no class is above HIGH.
  static constexpr std::array<int64_t, kPriorities> kWaitTargetMicros = {30'000'000, 15'000'000, 0};

  explicit Scheduler(const AdmissionBudget& capacity) : capacity_(capacity) {}

  // In the order of arrival.
  void Add(const QueuedRequest& request);
  bool Remove(uint64_t id);  // false when it is not queued
  // The next request in order, or null; valid until the queue changes.
  const QueuedRequest* First(int64_t now_us) const;
  int64_t waiting() const;

  // Moves requests from the queue to `admitted`, in order, while they fit the budget.
  void Admit(int64_t now_us, AdmissionBudget budget, std::vector<uint64_t>* admitted);

 private:
  // Where the class's next request starts in virtual time.
  int64_t StartTag(int priority) const;
  // The request's largest share of a capacity, in units of 1 / kWhole, 1 at least.
  int64_t DominantShare(const QueuedRequest& request) const;
  bool Overdue(int priority, int64_t now_us) const;
  int FirstClass(int64_t now_us) const;  // -1: nobody waits

  AdmissionBudget capacity_;
  std::array<std::deque<QueuedRequest>, kPriorities> queues_;  // by class, each by arrival
  // Of start-time fair queueing: the start tag of the request admitted last, and for each class
  // the end of its last request in virtual time.
  int64_t virtual_time_ = 0;
  std::array<int64_t, kPriorities> finish_tags_ = {};
};

// What beside decoding is pressure: the highest classes, if any.
struct PriorityPressure {
  std::optional<Priority> encoding;  // in the encoder, or waiting for nothing but the encoder
  std::optional<Priority> waiting;   // for room, which running requests hold
};

// Whose turn the next decoder step is. The most pressure class that runs or is encoded has every
// step; less pressure requests rest, all together, so that its steps have few rows, and come back
// for one step after kMaxSkippedSteps at most. They do not rest while something more pressure waits
// for the room that they hold. Where all are of one class nobody ever rests.
class PriorityThrottle {
 public:
  // A running request takes part in at least one of any kMaxSkippedSteps + 1 steps.
  static constexpr int64_t kMaxSkippedSteps = 3;

  // The least pressure class that takes part in the next step. `running`: the classes of all that
  // could, not empty. A class above all of them: the step is left to the encoder.
  Priority LowestInStep(absl::Span<const Priority> running, const PriorityPressure& pressure) const;
  // The next step is settled; `skipped`: somebody who could have taken part does not.
  void RecordStep(bool skipped) { skipped_steps_ = skipped ? skipped_steps_ + 1 : 0; }

 private:
  int64_t skipped_steps_ = 0;  // steps in succession without somebody
};

// Deals a step's remaining tokens to the sequences that still read given tokens, first come first
// served: prefill[i] <= remaining[i], and the sum is min(budget, sum of remaining).
void SplitPrefillBudget(int64_t budget, absl::Span<const int64_t> remaining,
                        absl::Span<int64_t> prefill);

}  // namespace quintet
