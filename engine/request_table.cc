#include "engine/request_table.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/reserve.h"
#include "kernels/base/status_macros.h"

namespace quintet {

RequestTable::RequestTable(const EngineLimits& limits, int64_t pages_total)
    : max_queue_requests_(limits.max_queue_requests), max_queue_tokens_(limits.max_queue_tokens) {
  counters_.pages_total = pages_total;
}

absl::Status RequestTable::CheckRoom(int64_t tokens) const {
  QT_RETURN_IF_ERROR(status_);
  if (counters_.waiting >= max_queue_requests_) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", counters_.waiting,
                                                     " requests waiting, the limit is ",
                                                     max_queue_requests_));
  }
  if (queued_tokens_ + tokens > max_queue_tokens_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued_tokens_, " tokens waiting, the limit is ",
                     max_queue_tokens_, ", the request has ", tokens));
  }
  return absl::OkStatus();
}

absl::Status RequestTable::CheckOpen() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return CheckRoom(0);
}

absl::StatusOr<RequestId> RequestTable::Add(std::unique_ptr<Job> job, int64_t now_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  QT_RETURN_IF_ERROR(CheckRoom(job->queue_tokens));
  // The statements that may throw come first: if one of them throws, no request has been added.
  EnsureCapacity(inbox_.size() + 1, &inbox_);
  EnsureCapacity(cancelled_.size() + live_.size() + 1, &cancelled_);
  const RequestId id = next_id_;
  live_.emplace(id, false);
  ++next_id_;
  job->id = id;
  job->submitted_us = now_us;
  job->needs.id = id;
  job->needs.arrival_us = now_us;
  queued_tokens_ += job->queue_tokens;
  ++counters_.accepted;
  ++counters_.waiting;
  inbox_.push_back(std::move(job));
  wake_.notify_all();
  return id;
}

void RequestTable::Cancel(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto live = live_.find(id);
  if (live == live_.end() || live->second) return;
  live->second = true;
  cancelled_.push_back(id);
  wake_.notify_all();
}

EngineCounters RequestTable::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

absl::Status RequestTable::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void RequestTable::WaitForWork(int64_t timeout_us) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, std::chrono::microseconds(timeout_us),
                 [this] { return !inbox_.empty() || !cancelled_.empty() || !live_.empty(); });
}

void RequestTable::TakeArrivals(std::vector<std::unique_ptr<Job>>* jobs) {
  std::lock_guard<std::mutex> lock(mutex_);
  jobs->swap(inbox_);
}

bool RequestTable::NextCancelled(RequestId* id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cancelled_.empty()) return false;
  *id = cancelled_.back();
  cancelled_.pop_back();
  return true;
}

void RequestTable::OnStarted(const Job& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  --counters_.waiting;
  ++counters_.running;
  counters_.prompt_tokens += static_cast<int64_t>(job.request.input.size());
  queued_tokens_ -= job.queue_tokens;
}

void RequestTable::AddGenerated(int64_t tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  counters_.generated_tokens += tokens;
}

void RequestTable::OnFinished(const Job& job, bool was_queued, int64_t pages_used) {
  std::lock_guard<std::mutex> lock(mutex_);
  --(was_queued ? counters_.waiting : counters_.running);
  if (was_queued) queued_tokens_ -= job.queue_tokens;
  ++(job.state == JobState::kDone        ? counters_.finished
     : job.state == JobState::kCancelled ? counters_.cancelled
                                         : counters_.failed);
  counters_.pages_used = pages_used;
  live_.erase(job.id);
}

bool RequestTable::OnStep(int64_t pages_used, int64_t cache_queries, int64_t cache_hits) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.steps;
  counters_.pages_used = pages_used;
  counters_.encoder_cache_queries = cache_queries;
  counters_.encoder_cache_hits = cache_hits;
  return !live_.empty();
}

void RequestTable::Fail(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
}

}  // namespace quintet
