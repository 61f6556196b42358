// The part of the engine that its threads share: the inbox of submitted requests, cancellations,
// counters and the engine's status, all under one mutex. Submitting threads add requests; the
// stepping thread takes them and reports their ends. Every member function is thread safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/job.h"

namespace quintet {

class RequestTable {
 public:
  RequestTable(const EngineLimits& limits, int64_t pages_total);

  // Functions for the submitting threads.

  // Returns RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE once the device has failed.
  // Submit calls this first, so that refusing a burst of requests costs little.
  absl::Status CheckOpen() const;
  // Puts a job into the inbox and returns the id of its request. Returns the same errors as
  // CheckOpen, and RESOURCE_EXHAUSTED if with this job the waiting requests would have more tokens
  // than the queue may hold. If Add throws std::bad_alloc, nothing has changed.
  absl::StatusOr<RequestId> Add(std::unique_ptr<Job> job, int64_t now_us);
  // Cancels a request. Ignores unknown ids and repeated calls.
  void Cancel(RequestId id);
  EngineCounters counters() const;
  // The engine's status: OK until Fail is called, then the status that was given to Fail.
  absl::Status status() const;

  // Functions for the stepping thread.

  // Blocks until there is an unfinished or a cancelled request, or `timeout_us` microseconds have
  // passed.
  void WaitForWork(int64_t timeout_us);
  // Moves all jobs, in order of arrival, from the inbox to `jobs`, which must be empty.
  void TakeArrivals(std::vector<std::unique_ptr<Job>>* jobs);
  // Removes one id from the list of cancelled requests and sets *id to it; returns false when the
  // list is empty.
  bool NextCancelled(RequestId* id);
  // Must be called when the job has left the queue to run: updates the counters.
  void OnStarted(const Job& job);
  void AddGenerated(int64_t tokens);
  // Must be called when the job has reached its final state: updates the counters and forgets the
  // id.
  void OnFinished(const Job& job, bool was_queued, int64_t pages_used);
  // Must be called when a step has ended: updates the counters. Returns whether unfinished requests
  // are left.
  bool OnStep(int64_t pages_used, int64_t cache_queries, int64_t cache_hits);
  // Must be called when the device has failed: from now on Add refuses requests with `status`.
  void Fail(const absl::Status& status);

 private:
  // Returns an error if the engine's status or the queue limits do not allow a further request of
  // `tokens` tokens. The caller holds mutex_.
  absl::Status CheckRoom(int64_t tokens) const;

  const int64_t max_queue_requests_, max_queue_tokens_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // a request was added or cancelled
  std::vector<std::unique_ptr<Job>> inbox_;
  std::vector<RequestId> cancelled_;          // each id once; Add reserves the capacity
  std::unordered_map<RequestId, bool> live_;  // unfinished requests: id -> whether cancelled
  EngineCounters counters_;
  int64_t queued_tokens_ = 0;
  RequestId next_id_ = 1;
  absl::Status status_;  // not OK once the device has failed
};

}  // namespace quintet
