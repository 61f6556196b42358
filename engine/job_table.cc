#include "engine/job_table.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/reserve.h"
#include "kernels/base/check.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/runtime/parallel_blocks.h"

namespace quintet {

JobTable::JobTable(const Capacity& capacity, RequestTable* requests, EncoderRunner* encoder,
                   Model* model, Clock clock)
    : capacity_(capacity),
      requests_(requests),
      encoder_(encoder),
      adapters_(model->adapter_slots()),
      clock_(std::move(clock)),
      out_of_memory_(OutOfMemory()),
      expired_in_queue_(absl::DeadlineExceededError("the deadline passed in the queue")),
      expired_running_(absl::DeadlineExceededError("the deadline passed while decoding")),
      device_failed_(absl::UnavailableError("the device failed")),
      threads_(&model->stream().pool()),
      pool_(capacity.pages, capacity.page_size),
      scheduler_({capacity.encode_tokens, capacity.pages, capacity.running_sequences}) {}

JobTable::~JobTable() {
  SendOutputs();
  TakeArrivals([](size_t) {});
  FinishCancelled();
  while (!jobs_.empty()) {
    Finish(jobs_.begin()->second.get(), JobState::kFailed,
           absl::UnavailableError("the engine is shutting down"));
  }
}

Job* JobTable::Find(RequestId id) const {
  const auto job = jobs_.find(id);
  return job == jobs_.end() ? nullptr : job->second.get();
}

// Adds a job to the table and to the scheduler's queue. If an allocation fails, changes nothing and
// returns false.
bool JobTable::Accept(std::unique_ptr<Job>* job, absl::FunctionRef<void(size_t jobs)> reserve) {
  const RequestId id = (*job)->id;
  auto place = jobs_.end();
  try {
    const size_t jobs = jobs_.size() + 1;
    EnsureCapacity(jobs, &finishing_);
    EnsureCapacity(jobs, &decoding_);
    EnsureCapacity(jobs, &admitted_ids_);
    outputs_.Reserve(jobs);
    reserve(jobs);
    place = jobs_.try_emplace(id).first;
    scheduler_.Add((*job)->needs);
  } catch (const std::bad_alloc&) {
    if (place != jobs_.end()) jobs_.erase(place);
    return false;
  }
  place->second = std::move(*job);
  next_deadline_us_ = std::min(next_deadline_us_, place->second->request.deadline_us);
  return true;
}

void JobTable::TakeArrivals(absl::FunctionRef<void(size_t jobs)> reserve) {
  requests_->TakeArrivals(&arrivals_);
  for (std::unique_ptr<Job>& job : arrivals_) {
    if (Accept(&job, reserve)) continue;
    job->MoveTo(JobState::kFailed);
    Notify(job.get(), /*was_queued=*/true, out_of_memory_);
  }
  arrivals_.clear();
}

void JobTable::FinishCancelled() {
  for (RequestId id; requests_->NextCancelled(&id);) {
    Job* const job = Find(id);
    if (job != nullptr) Finish(job, JobState::kCancelled, absl::CancelledError("cancelled"));
  }
}

void JobTable::FinishExpired(int64_t now_us) {
  if (now_us < next_deadline_us_) return;
  next_deadline_us_ = std::numeric_limits<int64_t>::max();
  finishing_.clear();
  for (const auto& [id, job] : jobs_) {
    const int64_t deadline_us = job->request.deadline_us;
    if (now_us >= deadline_us) {
      finishing_.push_back(job.get());
    } else {
      next_deadline_us_ = std::min(next_deadline_us_, deadline_us);
    }
  }
  for (Job* job : finishing_) {
    Finish(job, JobState::kFailed,
           job->state == JobState::kQueued ? expired_in_queue_ : expired_running_);
  }
}

AdmissionBudget JobTable::FreeBudget() const {
  return {.encode_tokens = 0,
          .pages = pool_.free_pages(),
          .sequences = capacity_.running_sequences - reserved_sequences_};
}

void JobTable::Admit(int64_t now_us, const AdmissionBudget& budget, std::vector<Job*>* admitted) {
  admitted_ids_.clear();
  scheduler_.Admit(
      now_us, budget, [this](RequestId id) { return TakeAdapterSlot(jobs_.at(id).get()); },
      &admitted_ids_);
  for (const RequestId id : admitted_ids_) admitted->push_back(jobs_.at(id).get());
}

bool JobTable::TakeAdapterSlot(Job* job) {
  if (job->request.adapter == nullptr) return true;
  job->adapter = adapters_->Take(job->request.adapter);
  return job->adapter >= 0;
}

// AssignPages runs on all threads: when a GPU processes a large input file, one call admits
// hundreds of requests, and each has tens of kilobytes to allocate and fill.
void JobTable::Start(std::span<Job* const> jobs, int64_t now_us) {
  for (Job* job : jobs) ReserveFor(job, now_us);
  constexpr int64_t kJobsPerTask = 16;
  ForEachInBlocks(threads_, static_cast<int64_t>(jobs.size()), kJobsPerTask, [jobs](int64_t i) {
    Job* const job = jobs[i];
    if (job->out_of_memory || job->task() == nullptr) return;
    try {
      job->task()->AssignPages(job->own_pages);
    } catch (const std::bad_alloc&) {
      job->out_of_memory = true;
    }
  });
  for (Job* job : jobs) {
    if (job->out_of_memory) continue;
    try {
      // OnStart may make another thread submit the next request right away: this job has already
      // left the queue, so there is room for that request.
      job->request.sink->OnStart();
    } catch (const std::bad_alloc&) {
      job->out_of_memory = true;
    }
  }
}

void JobTable::ReserveFor(Job* job, int64_t now_us) {
  job->admitted_us = job->encoded_us = now_us;
  DecodeTask* const task = job->task();
  if (task != nullptr) reserved_sequences_ += task->sequences();
  requests_->OnStarted(*job);
  if (task == nullptr) return;
  try {
    const int64_t length = static_cast<int64_t>(job->request.input.size());
    QT_CHECK(pool_.Reserve(task->pages_needed(), &job->own_pages));
    if (job->encodes) {
      QT_CHECK(pool_.Reserve(pool_.PagesFor(length), &job->source_pages));
      job->source_slots = ConsecutiveSlots(job->source_pages, length, pool_.page_size());
    }
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
}

PriorityPressure JobTable::CurrentPressure() const {
  PriorityPressure pressure;
  pressure.encoding = encoder_->HighestPriority();
  const QueuedRequest* first = scheduler_.First(clock_());
  if (first == nullptr) return pressure;
  const AdmissionBudget free = FreeBudget();
  const AdapterHandle& adapter = jobs_.at(first->id)->request.adapter;
  if (first->pages <= free.pages && first->sequences <= free.sequences &&
      (adapter == nullptr || adapters_->CanTake(*adapter))) {
    pressure.encoding = std::max(pressure.encoding.value_or(first->priority), first->priority);
  } else {
    pressure.waiting = first->priority;
  }
  return pressure;
}

void JobTable::SendOutputs() {
  outputs_.SendAll(threads_, [this](Job* job) { NotifyDone(job); });
}

// Reports to the sink of `job` that the job has ended. OutputQueue::SendAll calls this function for
// each complete job, after it has moved the job's sequences into job->result.
void JobTable::NotifyDone(Job* job) {
  const Generation* const generation = job->generation();
  if (generation != nullptr && !job->out_of_memory) {
    job->result.output_tokens = generation->new_tokens();
    requests_->AddGenerated(generation->new_tokens() - job->counted_tokens);
  } else {
    job->CountScoredTokens();
  }
  if (job->out_of_memory) job->MoveTo(JobState::kFailed);
  Notify(job, /*was_queued=*/false, job->out_of_memory ? out_of_memory_ : absl::OkStatus());
}

void JobTable::FinishOutOfMemory() {
  finishing_.clear();
  for (Job* job : decoding_) {
    if (job->ran_out_of_memory()) finishing_.push_back(job);
  }
  for (Job* job : finishing_) FinishOutOfMemory(job);
}

void JobTable::FailAll(const absl::Status& status) {
  SendOutputs();
  absl::Status unavailable = device_failed_;
  try {
    unavailable = absl::UnavailableError(absl::StrCat("the device failed: ", status.message()));
  } catch (const std::bad_alloc&) {  // keep the status without details
  }
  requests_->Fail(unavailable);
  while (!jobs_.empty()) {
    Job* job = jobs_.begin()->second.get();
    Finish(job, JobState::kFailed, job->state == JobState::kQueued ? unavailable : status);
  }
}

void JobTable::Finish(Job* job, JobState state, const absl::Status& status) {
  const bool was_queued = job->state == JobState::kQueued;
  outputs_.SendTokensOf(job);
  const std::unique_ptr<Job> owned = Detach(job, state);
  Notify(job, was_queued, status);
}

// Removes all `jobs` from the list of decoding jobs in one pass, because thousands may decode and
// hundreds of them end in one step.
void JobTable::QueueDone(std::span<Job* const> jobs) {
  for (Job* job : jobs) job->MoveTo(JobState::kDone);
  std::erase_if(decoding_, [](const Job* job) { return job->state == JobState::kDone; });
  for (Job* job : jobs) outputs_.AddDone(Remove(job, /*started=*/true));
}

std::unique_ptr<Job> JobTable::Detach(Job* job, JobState state) {
  const bool started = job->state != JobState::kQueued;
  if (!started) {
    QT_CHECK(scheduler_.Remove(job->id));
  } else {
    if (job->state == JobState::kEncoding) encoder_->Remove(job);
    std::erase(decoding_, job);
  }
  job->MoveTo(state);
  return Remove(job, started);
}

std::unique_ptr<Job> JobTable::Remove(Job* job, bool started) {
  if (started) {
    pool_.Release(&job->own_pages);
    pool_.Release(&job->source_pages);
    if (job->task() != nullptr) reserved_sequences_ -= job->task()->sequences();
    if (job->adapter >= 0) adapters_->Return(job->adapter);
  }
  const auto place = jobs_.find(job->id);
  std::unique_ptr<Job> owned = std::move(place->second);
  jobs_.erase(place);
  return owned;
}

void JobTable::Notify(Job* job, bool was_queued, const absl::Status& status) {
  job->FillTiming(clock_());
  requests_->OnFinished(*job, was_queued, pool_.used_pages());
  if (status.ok()) {
    job->request.sink->OnDone(std::move(job->result));
  } else {
    job->request.sink->OnDone(status);
  }
}

}  // namespace quintet
