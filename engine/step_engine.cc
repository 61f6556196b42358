#include "engine/step_engine.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/reserve.h"
#include "kernels/check.h"

namespace quintet {

StepEngine::~StepEngine() {
  SendOutputs();
  AcceptArrivals();
  while (!jobs_.empty()) {
    Finish(jobs_.begin()->second.get(), JobState::kFailed,
           absl::UnavailableError("the engine is shutting down"));
  }
}

absl::Status StepEngine::QueueFull(int64_t tokens) const {
  if (!broken_.ok()) return broken_;
  if (counters_.waiting >= limits_.max_queue_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", counters_.waiting, " requests wait"));
  }
  if (queued_tokens_ + tokens > limits_.max_queue_tokens) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued_tokens_, " tokens wait, the limit is ",
                     limits_.max_queue_tokens, ", the request has ", tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> StepEngine::Submit(Request request) {
  return CatchOutOfMemory([&] { return PlanAndQueue(std::move(request)); });
}

absl::StatusOr<RequestId> StepEngine::PlanAndQueue(Request request) {
  {  // a burst is turned away before any work is done for it
    std::lock_guard<std::mutex> lock(mutex_);
    const absl::Status status = QueueFull(0);
    if (!status.ok()) return status;
  }
  const int64_t now = clock_();
  absl::StatusOr<std::unique_ptr<Job>> job =
      PlanJob(std::move(request), model_->config(), tokenizer_, capacity_);
  if (!job.ok()) return job.status();

  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status status = QueueFull((*job)->queue_tokens);
  if (!status.ok()) return status;
  // Whatever may fail comes before the first change.
  EnsureCapacity(inbox_.size() + 1, &inbox_);
  EnsureCapacity(cancelled_.size() + live_.size() + 1, &cancelled_);
  const RequestId id = next_id_;
  live_.emplace(id, false);
  ++next_id_;
  (*job)->id = id;
  (*job)->submitted_us = now;
  (*job)->needs.id = id;
  (*job)->needs.arrival_us = now;
  queued_tokens_ += (*job)->queue_tokens;
  ++counters_.accepted;
  ++counters_.waiting;
  inbox_.push_back(std::move(*job));
  wake_.notify_all();
  return id;
}

void StepEngine::Cancel(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto live = live_.find(id);
  if (live == live_.end() || live->second) return;
  live->second = true;
  cancelled_.push_back(id);
  wake_.notify_all();
}

EngineCounters StepEngine::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

absl::Status StepEngine::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

void StepEngine::WaitForWork(int64_t timeout_us) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, std::chrono::microseconds(timeout_us),
                 [this] { return !inbox_.empty() || !cancelled_.empty() || !live_.empty(); });
}

bool StepEngine::Step() {
  model_->stream().Use();
  AcceptArrivals();
  const int64_t now = clock_();
  Expire(now);
  Admit(now);
  const bool streams = HasRunningStreams();
  const int64_t prefill_us = pace_.PrefillUs(streams);
  const int64_t begin_us = clock_();
  Encode(prefill_us);
  CompleteEncodes();
  // No step may come that would find it: nothing need be decoding.
  if (!device_status_.ok()) FailAll(device_status_);
  Decode(streams, prefill_us - (clock_() - begin_us));
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.steps;
  counters_.pages_used = pool_.used_pages();
  counters_.encoder_cache_queries = encoder_cache_.queries();
  counters_.encoder_cache_hits = encoder_cache_.hits();
  return !live_.empty();
}

bool StepEngine::NextCancelled(RequestId* id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cancelled_.empty()) return false;
  *id = cancelled_.back();
  cancelled_.pop_back();
  return true;
}

// What a step needs for `jobs` jobs, so that a failed allocation is the newest job's alone and the
// steps themselves allocate nothing for the lists of jobs.
void StepEngine::Reserve(size_t jobs) {
  for (auto* list : {&batch_, &decoding_, &continuations_}) EnsureCapacity(jobs, list);
  EnsureCapacity(jobs, &ids_);
  EnsureCapacity(jobs, &pending_encodes_);
  EnsureCapacity(jobs, &decoder_jobs_);
  EnsureCapacity(jobs, &token_gaps_us_);
  outputs_.Reserve(jobs);
  encoder_.Reserve(jobs);
}

// False, and nothing has changed, where an allocation fails.
bool StepEngine::Accept(std::unique_ptr<Job>* job) {
  const RequestId id = (*job)->id;
  Jobs::iterator place = jobs_.end();
  try {
    Reserve(jobs_.size() + 1);
    place = jobs_.try_emplace(id).first;
    scheduler_.Add((*job)->needs);
  } catch (const std::bad_alloc&) {
    if (place != jobs_.end()) jobs_.erase(place);
    return false;
  }
  place->second = std::move(*job);
  return true;
}

void StepEngine::AcceptArrivals() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.swap(inbox_);
  }
  for (std::unique_ptr<Job>& job : arrivals_) {
    if (Accept(&job)) continue;
    job->MoveTo(JobState::kFailed);
    Notify(job.get(), /*was_queued=*/true, out_of_memory_);
  }
  arrivals_.clear();
  for (RequestId id; NextCancelled(&id);) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    Finish(job->second.get(), JobState::kCancelled, absl::CancelledError("cancelled"));
  }
}

void StepEngine::Expire(int64_t now) {
  batch_.clear();
  for (const auto& [id, job] : jobs_) {
    if (now >= job->request.deadline_us) batch_.push_back(job.get());
  }
  for (Job* job : batch_) {
    Finish(job, JobState::kFailed,
           job->state == JobState::kQueued ? expired_in_queue_ : expired_running_);
  }
}

void StepEngine::Admit(int64_t now) {
  batch_.clear();
  if (scheduler_.waiting() == 0 && continuations_.empty()) return;
  AdmissionBudget budget;
  budget.encode_tokens = encoder_.active() ? 0 : capacity_.encode_tokens;
  budget.pages = pool_.free_pages();
  budget.sequences = capacity_.running_sequences - reserved_sequences_;
  if (continuations_first_) AdmitContinuations(&budget);
  ids_.clear();
  scheduler_.Admit(now, budget, &ids_);
  for (RequestId id : ids_) {
    Job* job = jobs_.at(id).get();
    job->MoveTo(job->encodes ? JobState::kEncoding : JobState::kDecoding);
    if (!StartJob(job, now)) {
      Finish(job, JobState::kFailed, out_of_memory_);
      continue;
    }
    if (job->encodes) {
      // Cached states are the host's; a task head wants them where the model runs.
      const bool usable = !job->classify_encoded || model_->stream().backend() == Backend::kCpu;
      EncodedStates known;
      if (usable && job->scored == nullptr) known = encoder_cache_.Find(job->request.input);
      if (known.owner == nullptr) {
        budget.encode_tokens -= job->needs.encode_tokens;
        batch_.push_back(job);
        continue;
      }
      job->result.cached_tokens = known.states.dim[0];
      encoder_.AddCached(job, std::move(known));
    } else {
      job->encoded_us = now;
      decoding_.push_back(job);
    }
  }
  if (!continuations_first_) AdmitContinuations(&budget);
  if (batch_.empty()) return;
  continuations_first_ = !continuations_first_;
  try {
    encoder_.Begin(batch_);
  } catch (const std::bad_alloc&) {
    for (Job* job : batch_) job->out_of_memory = true;
    FinishOutOfMemory();
  }
}

// Jobs of many parts and those that wait outside take turns at being first.
void StepEngine::AdmitContinuations(AdmissionBudget* budget) {
  std::erase_if(continuations_, [&](Job* job) {
    if (job->needs.encode_tokens > budget->encode_tokens) return false;
    budget->encode_tokens -= job->needs.encode_tokens;
    batch_.push_back(job);
    return true;
  });
}

// False where an allocation fails: the job has to end.
bool StepEngine::StartJob(Job* job, int64_t now) {
  job->admitted_us = job->encoded_us = now;
  DecodeTask* const task = job->task();
  if (task != nullptr) reserved_sequences_ += task->sequences();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --counters_.waiting;
    ++counters_.running;
    counters_.prompt_tokens += static_cast<int64_t>(job->request.input.size());
    queued_tokens_ -= job->queue_tokens;
  }
  try {
    if (task != nullptr) {
      const int64_t length = static_cast<int64_t>(job->request.input.size());
      QT_CHECK(pool_.Reserve(task->pages_needed(), &job->own_pages));
      task->AssignPages(job->own_pages);
      if (job->encodes) {
        QT_CHECK(pool_.Reserve(pool_.PagesFor(length), &job->source_pages));
        job->source_slots = ConsecutiveSlots(job->source_pages, length, pool_.page_size());
      }
    }
    // Who hears of it may let the next request in: its place must be free.
    job->request.sink->OnStart();
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// A failed allocation in the model or its batch ends every job that is being encoded.
void StepEngine::Encode(int64_t prefill_us) {
  try {
    encoder_.Advance(prefill_us,
                     [this](Job* job, const EncodedStates& encoded) { OnEncoded(job, encoded); });
  } catch (const std::bad_alloc&) {
    batch_.clear();
    encoder_.Jobs(&batch_);
    for (Job* job : batch_) job->out_of_memory = true;
    FinishOutOfMemory();
  }
}

bool StepEngine::HasRunningStreams() const {
  return std::any_of(decoding_.begin(), decoding_.end(),
                     [](const Job* job) { return job->task()->generating_rows() > 0; });
}

// What the decoder's rows have to make way for.
PriorityPressure StepEngine::CurrentPressure() const {
  PriorityPressure pressure;
  pressure.encoding = encoder_.HighestPriority();
  const QueuedRequest* first = scheduler_.First(clock_());
  if (first == nullptr) return pressure;
  const bool room = first->pages <= pool_.free_pages() &&
                    first->sequences <= capacity_.running_sequences - reserved_sequences_;
  if (room) {
    pressure.encoding = std::max(pressure.encoding.value_or(first->priority), first->priority);
  } else {
    pressure.waiting = first->priority;
  }
  return pressure;
}

}  // namespace quintet
