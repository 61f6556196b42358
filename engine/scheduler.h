// Order of admission and composition of a step, as pure integer functions of the queue, the time,
// the budgets and the priority classes. Not thread safe.
//
// Order of admission: the highest class first, within a class by arrival. A waiting class becomes
// overdue when its first request has waited a third of the class's target (kWaitTargetMicros). From
// then on it shares admissions with the highest waiting class and other overdue classes by
// start-time fair queueing: each of these classes gets an equal part, where a request counts by the
// largest fraction that it takes of any one resource (its dominant share). Until the next request
// in order fits, no other request is admitted; hence small requests cannot starve a large one.
//
// Therefore no class starves, whatever the load of the other classes. A class meets its target as
// long as its own requests need no more than its part of the capacity, and running requests, which
// are never preempted, end within a few seconds.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/request.h"

namespace quintet {

constexpr int kPriorities = 3;

struct QueuedRequest {
  uint64_t id = 0;
  Priority priority = Priority::kNormal;
  int64_t arrival_us = 0;
  int64_t encode_tokens = 0;  // rows of a packed encoder batch
  int64_t pages = 0;          // KV cache pages for its whole life
  int64_t sequences = 0;      // maximum rows of a decoder step
};

// An amount of each resource: either what is free now, or the engine's total capacity.
struct AdmissionBudget {
  int64_t encode_tokens = 0, pages = 0, sequences = 0;
};

class Scheduler {
 public:
  // Target for the longest time in microseconds that a request of each class, LOW to HIGH, waits
  // until it starts, at any load of higher classes. HIGH has no class above it and needs no target.
  static constexpr std::array<int64_t, kPriorities> kWaitTargetMicros = {30'000'000, 15'000'000, 0};

  explicit Scheduler(const AdmissionBudget& capacity) : capacity_(capacity) {}

  // Adds a request to the queue. Must be called in the order in which the requests arrive.
  void Add(const QueuedRequest& request);
  bool Remove(uint64_t id);  // false when it is not queued
  // The next request in admission order, or null; valid until the queue changes.
  const QueuedRequest* First(int64_t now_us) const;
  int64_t waiting() const;

  // Moves requests from the queue to `admitted`, in the order of admission (defined at the top of
  // this file). Calls start(id) for each request that fits the rest of the budget. Stops at the
  // first request that does not fit or for which start returns false.
  void Admit(int64_t now_us, AdmissionBudget budget, absl::FunctionRef<bool(uint64_t id)> start,
             std::vector<uint64_t>* admitted);

 private:
  // Virtual time at which the next request of the class may start, as computed by start-time fair
  // queueing (its start tag).
  int64_t StartTag(int priority) const;
  // For each of three resources (encoder tokens, cache pages, sequences), the request takes a
  // fraction of the total capacity. Returns the largest of these fractions, in units of 1 / kWhole,
  // at least 1.
  int64_t DominantShare(const QueuedRequest& request) const;
  bool Overdue(int priority, int64_t now_us) const;
  int FirstClass(int64_t now_us) const;  // -1: the queue is empty

  AdmissionBudget capacity_;
  std::array<std::deque<QueuedRequest>, kPriorities> queues_;  // per class, by arrival
  // State of start-time fair queueing, which gives each request a start and a finish time on a
  // virtual clock. virtual_time_: start time of the request admitted last. finish_tags_: per class,
  // the finish time of the request that it admitted last.
  int64_t virtual_time_ = 0;
  std::array<int64_t, kPriorities> finish_tags_ = {};
};

// Highest priorities of the work that competes with the running sequences: of the jobs in the
// encoder, and of the requests that wait for resources. Unset: there is no such work.
struct PriorityPressure {
  std::optional<Priority> encoding;  // jobs in the encoder, or waiting only for the encoder
  std::optional<Priority> waiting;   // queued request that waits for pages, sequences or slots
};

// Decides which priority classes run in the next decoder step. The highest class that is running or
// being encoded runs in every step. All lower classes are skipped together, so that the steps of
// the highest class stay small; they run in at least one of kMaxSkippedSteps + 1 steps. Nothing is
// skipped while a request of higher priority waits for pages, sequences or adapters' slots that
// lower classes hold, nor if all jobs have one priority.
class PriorityThrottle {
 public:
  // Every running request is in at least one of any kMaxSkippedSteps + 1 consecutive steps.
  static constexpr int64_t kMaxSkippedSteps = 3;

  // Returns a threshold: jobs of this class and of all higher classes run in the next step.
  // `running`: the classes of all jobs that could run; not empty. If the threshold is above all of
  // these, no job decodes in the next step, and the device is left to the encoder.
  Priority LowestInStep(std::span<const Priority> running, const PriorityPressure& pressure) const;
  // Must be called for each planned step. `skipped`: whether a job that could have run was skipped.
  void RecordStep(bool skipped) { skipped_steps_ = skipped ? skipped_steps_ + 1 : 0; }

 private:
  int64_t skipped_steps_ = 0;  // consecutive steps that skipped some job
};

// Splits a step's prefill budget among the sequences with tokens to prefill (`remaining`), first
// come first served: prefill[i] <= remaining[i], and the sum of `prefill` is min(budget, sum of
// `remaining`).
void SplitPrefillBudget(int64_t budget, std::span<const int64_t> remaining,
                        std::span<int64_t> prefill);

}  // namespace quintet
