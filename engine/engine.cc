#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/decoder.h"
#include "engine/encoder_cache.h"
#include "engine/encoder_work.h"
#include "engine/job.h"
#include "engine/kv_pool.h"
#include "engine/outbox.h"
#include "engine/reserve.h"
#include "engine/scheduler.h"
#include "engine/step_pace.h"
#include "kernels/check.h"
#include "kernels/out_of_memory.h"

namespace quintet {
namespace {

struct Parts {
  Model* model;
  const Tokenizer* tokenizer;
  EngineLimits limits;
  Clock clock;
  StepObserver* observer;
  std::unique_ptr<Decoder> decoder;
  Capacity capacity;
};

void CountScored(Result* result) {
  for (const ScoredTarget& target : result->targets) result->output_tokens += target.tokens.size();
}

class StepEngine : public Engine {
 public:
  explicit StepEngine(Parts parts)
      : model_(parts.model),
        tokenizer_(parts.tokenizer),
        limits_(parts.limits),
        clock_(std::move(parts.clock)),
        observer_(parts.observer),
        capacity_(parts.capacity),
        decoder_(std::move(parts.decoder)),
        pool_(capacity_.pages, capacity_.page_size),
        scheduler_({capacity_.encode_tokens, capacity_.pages, capacity_.running_sequences}),
        pace_(limits_.prefill_share),
        encoder_cache_(limits_.encoder_cache_bytes),
        encoding_(model_, &encoder_cache_, decoder_->target_scores(), clock_) {
    counters_.pages_total = capacity_.pages;
  }
  ~StepEngine() override;

  absl::StatusOr<RequestId> Submit(Request request) override;
  void Cancel(RequestId id) override;
  EngineCounters counters() const override;
  absl::Status status() const override;
  bool Step() override;
  void WaitForWork(int64_t timeout_us) override;

 private:
  using Jobs = std::unordered_map<RequestId, std::unique_ptr<Job>>;
  struct Encoded {
    Job* job;
    EncodedStates states;

    // What the job reads of them.
    Tensor Read() const {
      const RowRange rows = PooledRows(job->request.pooling, states.host.dim[0]);
      return states.host.Rows(rows.begin, rows.end);
    }
  };

  absl::Status QueueFull(int64_t tokens) const;  // under mutex_
  absl::StatusOr<RequestId> PlanAndQueue(Request request);
  bool NextCancelled(RequestId* id);
  void TakeInbox();
  bool TakeIn(std::unique_ptr<Job>* job);
  void Reserve(size_t jobs);
  void Expire(int64_t now);
  void Admit(int64_t now);
  void GoOn(AdmissionBudget* budget);
  bool StartJob(Job* job, int64_t now);
  void Encode(int64_t prefill_us);
  bool StreamsWait() const;
  Urgent UrgentNow() const;
  void UseStates(Job* job, const EncodedStates& encoded);
  absl::Status ReadStates(Job* job, const EncodedStates& encoded);
  void HandOut();
  void Decode(bool streams, int64_t prefill_us);
  void TakeTokens(const Decoder::StepSize& size, int64_t new_tokens_before, int64_t now);
  void CountTokens(Job* job, int64_t now);
  void SendAll();
  void AnswerDone(Job* job);
  void EndOutOfMemory();
  void Break(const absl::Status& status);
  void End(Job* job, JobState state, const absl::Status& status);
  std::unique_ptr<Job> Leave(Job* job, JobState state);
  void Answer(Job* job, bool was_queued, const absl::Status& status);

  Model* const model_;
  const Tokenizer* const tokenizer_;
  const EngineLimits limits_;
  const Clock clock_;
  StepObserver* const observer_;
  const Capacity capacity_;

  // Shared with the threads that submit.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Job>> inbox_;
  std::vector<RequestId> cancelled_;          // each once; Submit makes the room
  std::unordered_map<RequestId, bool> live_;  // submitted and not ended: whether cancelled
  EngineCounters counters_;
  int64_t queued_tokens_ = 0;
  RequestId next_id_ = 1;
  absl::Status broken_;  // not OK once the device has failed

  // Statuses that exist before they are needed: to make one allocates.
  const absl::Status out_of_memory_ = OutOfMemory();
  const absl::Status late_in_queue_ =
      absl::DeadlineExceededError("the deadline passed in the queue");
  const absl::Status late_in_work_ =
      absl::DeadlineExceededError("the deadline passed while decoding");
  const absl::Status device_failed_ = absl::UnavailableError("the device failed");

  // The stepping thread's own.
  std::unique_ptr<Decoder> decoder_;
  KvPool pool_;
  Scheduler scheduler_;
  StepPace pace_;
  EncoderCache encoder_cache_;
  EncoderWork encoding_;
  Jobs jobs_;
  std::vector<Job*> decoding_;    // in order of admission
  std::vector<Job*> to_go_on_;    // with the next part of what they score
  std::vector<Encoded> encoded_;  // that want their states
  Outbox outbox_;
  absl::Status device_status_;  // as encoding found it
  bool go_on_first_ = false;
  int64_t reserved_sequences_ = 0;
  std::vector<std::unique_ptr<Job>> arrivals_;  // scratch of a step, like those below
  std::vector<RequestId> ids_;
  std::vector<Job*> batch_;
  std::vector<DecoderJob> decoder_jobs_;
  std::vector<int64_t> token_gaps_us_;
};

StepEngine::~StepEngine() {
  SendAll();
  TakeInbox();
  while (!jobs_.empty()) {
    End(jobs_.begin()->second.get(), JobState::kFailed,
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
  MakeRoom(inbox_.size() + 1, &inbox_);
  MakeRoom(cancelled_.size() + live_.size() + 1, &cancelled_);
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
  TakeInbox();
  const int64_t now = clock_();
  Expire(now);
  Admit(now);
  const bool streams = StreamsWait();
  const int64_t prefill_us = pace_.PrefillUs(streams);
  const int64_t begin_us = clock_();
  Encode(prefill_us);
  HandOut();
  // No step may come that would find it: nothing need be decoding.
  if (!device_status_.ok()) Break(device_status_);
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
  for (auto* list : {&batch_, &decoding_, &to_go_on_}) MakeRoom(jobs, list);
  MakeRoom(jobs, &ids_);
  MakeRoom(jobs, &encoded_);
  MakeRoom(jobs, &decoder_jobs_);
  MakeRoom(jobs, &token_gaps_us_);
  outbox_.Reserve(jobs);
  encoding_.Reserve(jobs);
}

// False, and nothing has changed, where an allocation fails.
bool StepEngine::TakeIn(std::unique_ptr<Job>* job) {
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

void StepEngine::TakeInbox() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    arrivals_.swap(inbox_);
  }
  for (std::unique_ptr<Job>& job : arrivals_) {
    if (TakeIn(&job)) continue;
    job->MoveTo(JobState::kFailed);
    Answer(job.get(), /*was_queued=*/true, out_of_memory_);
  }
  arrivals_.clear();
  for (RequestId id; NextCancelled(&id);) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    End(job->second.get(), JobState::kCancelled, absl::CancelledError("cancelled"));
  }
}

void StepEngine::Expire(int64_t now) {
  batch_.clear();
  for (const auto& [id, job] : jobs_) {
    if (now >= job->request.deadline_us) batch_.push_back(job.get());
  }
  for (Job* job : batch_) {
    End(job, JobState::kFailed, job->state == JobState::kQueued ? late_in_queue_ : late_in_work_);
  }
}

void StepEngine::Admit(int64_t now) {
  batch_.clear();
  if (scheduler_.waiting() == 0 && to_go_on_.empty()) return;
  AdmissionBudget budget;
  budget.encode_tokens = encoding_.active() ? 0 : capacity_.encode_tokens;
  budget.pages = pool_.free_pages();
  budget.sequences = capacity_.running_sequences - reserved_sequences_;
  if (go_on_first_) GoOn(&budget);
  ids_.clear();
  scheduler_.Admit(now, budget, &ids_);
  for (RequestId id : ids_) {
    Job* job = jobs_.at(id).get();
    job->MoveTo(job->encodes ? JobState::kEncoding : JobState::kDecoding);
    if (!StartJob(job, now)) {
      End(job, JobState::kFailed, out_of_memory_);
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
      encoding_.AddEncoded(job, std::move(known));
    } else {
      job->encoded_us = now;
      decoding_.push_back(job);
    }
  }
  if (!go_on_first_) GoOn(&budget);
  if (batch_.empty()) return;
  go_on_first_ = !go_on_first_;
  try {
    encoding_.Begin(batch_);
  } catch (const std::bad_alloc&) {
    for (Job* job : batch_) job->out_of_memory = true;
    EndOutOfMemory();
  }
}

// Jobs of many parts and those that wait outside take turns at being first.
void StepEngine::GoOn(AdmissionBudget* budget) {
  std::erase_if(to_go_on_, [&](Job* job) {
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
    encoding_.Advance(prefill_us,
                      [this](Job* job, const EncodedStates& encoded) { UseStates(job, encoded); });
  } catch (const std::bad_alloc&) {
    batch_.clear();
    encoding_.Jobs(&batch_);
    for (Job* job : batch_) job->out_of_memory = true;
    EndOutOfMemory();
  }
}

bool StepEngine::StreamsWait() const {
  return std::any_of(decoding_.begin(), decoding_.end(),
                     [](const Job* job) { return job->task()->generating_rows() > 0; });
}

// What the decoder's rows have to make way for.
Urgent StepEngine::UrgentNow() const {
  Urgent urgent;
  urgent.encoding = encoding_.MostUrgent();
  const QueuedRequest* first = scheduler_.First(clock_());
  if (first == nullptr) return urgent;
  const bool room = first->pages <= pool_.free_pages() &&
                    first->sequences <= capacity_.running_sequences - reserved_sequences_;
  if (room) {
    urgent.encoding = std::max(urgent.encoding.value_or(first->priority), first->priority);
  } else {
    urgent.waiting = first->priority;
  }
  return urgent;
}

void StepEngine::UseStates(Job* job, const EncodedStates& encoded) {
  job->encoded_us = clock_();
  if (job->task() != nullptr) {
    job->MoveTo(JobState::kDecoding);
    decoding_.push_back(job);
    return;
  }
  if (job->kind() == RequestKind::kEncode) return encoded_.push_back({job, encoded});
  absl::Status status;
  try {
    status = ReadStates(job, encoded);
    device_status_.Update(status);
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
  if (job->out_of_memory) return End(job, JobState::kFailed, out_of_memory_);
  if (status.ok() && job->scored != nullptr && !job->scored->done()) {
    return to_go_on_.push_back(job);
  }
  End(job, status.ok() ? JobState::kDone : JobState::kFailed, status);
}

// The status is the device's.
absl::Status StepEngine::ReadStates(Job* job, const EncodedStates& encoded) {
  const Tensor& states = encoded.states;
  Result& result = job->result;
  if (job->scored != nullptr) {
    const absl::Status status = model_->stream().Synchronize();
    job->scored->Advance();
    if (job->scored->done()) CountScored(&result);
    return status;
  }
  // The task head's raw logits of what the request asks for: one row or all.
  const int64_t row = job->encoded_row;
  result.columns = model_->config().labels;
  decoder_->Classify(row < 0 ? states : states.Rows(row, row + 1), &result.values);
  result.rows = static_cast<int64_t>(result.values.size()) / result.columns;
  return model_->stream().Synchronize();  // what was read may be nothing
}

// States to those who asked for them. Many of them side by side: to copy them into memory that is
// touched for the first time takes one thread as long as a GPU takes to make them.
void StepEngine::HandOut() {
  if (encoded_.empty()) return;
  const Stream& stream = model_->stream();
  const absl::Status status = stream.Synchronize();
  device_status_.Update(status);
  int64_t values = 0;
  for (const Encoded& encoded : encoded_) values += encoded.Read().elements();
  const auto pool = [this](int64_t i, int) {
    const Tensor read = encoded_[i].Read();
    Job& job = *encoded_[i].job;
    try {
      PoolStates(job.request, {read.f32(), static_cast<size_t>(read.elements())}, read.dim[1],
                 &job.result);
    } catch (const std::bad_alloc&) {
      job.out_of_memory = true;
    }
  };
  constexpr int64_t kMany = int64_t{1} << 16;  // worth waking threads for
  const auto jobs = static_cast<int64_t>(encoded_.size());
  if (values >= kMany) {
    stream.pool().ParallelFor(jobs, pool);
  } else {
    for (int64_t i = 0; i < jobs; ++i) pool(i, 0);
  }
  for (const Encoded& encoded : encoded_) {
    const bool failed = status.ok() && encoded.job->out_of_memory;
    const absl::Status& outcome = failed ? out_of_memory_ : status;
    End(encoded.job, outcome.ok() ? JobState::kDone : JobState::kFailed, outcome);
  }
  encoded_.clear();
}

void StepEngine::Decode(bool streams, int64_t prefill_us) {
  // Where steps run ahead the last step's results may still be here though all that decoded have
  // ended since.
  if (decoding_.empty()) return SendAll();
  decoder_jobs_.clear();
  int64_t before = 0;
  for (Job* job : decoding_) {
    DecoderJob entry;
    entry.id = job->id;
    entry.priority = job->request.priority;
    entry.source_slots = job->source_slots;
    entry.generation = job->generation.get();
    entry.forced = job->forced.get();
    entry.top_logprobs = job->request.top_logprobs;
    entry.result = &job->result;
    entry.out_of_memory = &job->out_of_memory;
    decoder_jobs_.push_back(entry);
    if (entry.generation != nullptr) before += entry.generation->new_tokens();
  }
  const int64_t begin_us = clock_();
  absl::StatusOr<Decoder::StepSize> size = Decoder::StepSize{};
  try {
    size = decoder_->Step(decoder_jobs_, pace_.GivenTokens(streams, prefill_us), UrgentNow(),
                          [this] { SendAll(); });
  } catch (const std::bad_alloc&) {
    // Which sequences have the step's tokens is unknown.
    decoder_->Reset();
    for (Job* job : decoding_) job->out_of_memory = true;
  }
  SendAll();  // what an earlier step left, unless that has happened meanwhile
  if (!size.ok()) return Break(size.status());
  const int64_t now = clock_();
  if (size->sequences > 0) {
    pace_.RecordDecode(streams, size->given_tokens, now - begin_us);
    TakeTokens(*size, before, now);
  }  // otherwise it was left to the encoder
  EndOutOfMemory();
}

void StepEngine::TakeTokens(const Decoder::StepSize& size, int64_t new_tokens_before, int64_t now) {
  batch_.clear();
  token_gaps_us_.clear();
  int64_t after = 0;
  for (Job* job : decoding_) {
    if (job->generation != nullptr) after += job->generation->new_tokens();
    if (job->ran_out_of_memory()) continue;
    if (job->generation != nullptr) {
      if (job->generation->chosen_length() > job->counted_length) CountTokens(job, now);
    }
    if (job->task()->done()) batch_.push_back(job);
  }
  if (observer_ != nullptr) observer_->OnStep({size.sequences, token_gaps_us_});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    counters_.generated_tokens += after - new_tokens_before;
  }
  for (Job* job : batch_) outbox_.AddDone(Leave(job, JobState::kDone));
  if (!decoder_->runs_ahead() || decoding_.empty()) SendAll();
}

// The request has a token more.
void StepEngine::CountTokens(Job* job, int64_t now) {
  if (job->first_token_us == 0) {
    job->first_token_us = now;
  } else {
    token_gaps_us_.push_back(now - job->last_token_us);
  }
  job->last_token_us = now;
  job->counted_length = job->generation->chosen_length();
  if (job->request.stream && !job->generation->done()) outbox_.AddTokens(job);
}

void StepEngine::SendAll() {
  outbox_.SendAll([this](Job* job) { AnswerDone(job); });
}

void StepEngine::AnswerDone(Job* job) {
  Result& result = job->result;
  if (job->generation != nullptr && !job->out_of_memory) {
    const int64_t before = job->generation->new_tokens();
    try {
      result.sequences = job->generation->TakeSequences();
    } catch (const std::bad_alloc&) {
      job->out_of_memory = true;
    }
    result.output_tokens = job->generation->new_tokens();
    std::lock_guard<std::mutex> lock(mutex_);
    counters_.generated_tokens += result.output_tokens - before;
  } else {
    CountScored(&result);
  }
  if (job->out_of_memory) job->MoveTo(JobState::kFailed);
  Answer(job, /*was_queued=*/false, job->out_of_memory ? out_of_memory_ : absl::OkStatus());
}

// Ends the jobs that an allocation failed for.
void StepEngine::EndOutOfMemory() {
  batch_.clear();
  for (const auto& [id, job] : jobs_) {
    if (job->ran_out_of_memory()) batch_.push_back(job.get());
  }
  for (Job* job : batch_) End(job, JobState::kFailed, out_of_memory_);
}

// The device failed: what runs on it is lost, and nothing can follow.
void StepEngine::Break(const absl::Status& status) {
  SendAll();
  absl::Status broken = device_failed_;
  try {
    broken = absl::UnavailableError(absl::StrCat("the device failed: ", status.message()));
  } catch (const std::bad_alloc&) {  // without the details, then
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = broken;
  }
  while (!jobs_.empty()) {
    Job* job = jobs_.begin()->second.get();
    End(job, JobState::kFailed, job->state == JobState::kQueued ? broken_ : status);
  }
}

void StepEngine::End(Job* job, JobState state, const absl::Status& status) {
  const bool was_queued = job->state == JobState::kQueued;
  outbox_.SendTokensOf(job);
  const std::unique_ptr<Job> owned = Leave(job, state);
  Answer(job, was_queued, status);
}

// What the job holds is free for others.
std::unique_ptr<Job> StepEngine::Leave(Job* job, JobState state) {
  if (job->state == JobState::kQueued) {
    QT_CHECK(scheduler_.Remove(job->id));
  } else {
    if (job->state == JobState::kEncoding) encoding_.Forget(job);
    std::erase(to_go_on_, job);
    decoding_.erase(std::remove(decoding_.begin(), decoding_.end(), job), decoding_.end());
    pool_.Release(&job->own_pages);
    pool_.Release(&job->source_pages);
    if (job->task() != nullptr) reserved_sequences_ -= job->task()->sequences();
  }
  job->MoveTo(state);
  std::unique_ptr<Job> owned = std::move(jobs_.at(job->id));
  jobs_.erase(job->id);
  return owned;
}

// The last that a job hears.
void StepEngine::Answer(Job* job, bool was_queued, const absl::Status& status) {
  job->FillTiming(clock_());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --(was_queued ? counters_.waiting : counters_.running);
    if (was_queued) queued_tokens_ -= job->queue_tokens;
    ++(job->state == JobState::kDone        ? counters_.finished
       : job->state == JobState::kCancelled ? counters_.cancelled
                                            : counters_.failed);
    counters_.pages_used = pool_.used_pages();
    live_.erase(job->id);
  }
  if (status.ok()) {
    job->request.sink->OnDone(std::move(job->result));
  } else {
    job->request.sink->OnDone(status);
  }
}

absl::Status CheckLimits(const EngineLimits& limits, const ModelLimits& model_limits) {
  const struct {
    const char* field;
    int64_t value, low;
  } checks[] = {
      {"max_queue_requests", limits.max_queue_requests, 1},
      {"max_queue_tokens", limits.max_queue_tokens, 1},
      {"max_running_sequences", limits.max_running_sequences, 1},
      {"encoder_cache_bytes", limits.encoder_cache_bytes, 0},
      {"max_step_tokens", model_limits.max_step_tokens, 1},
      {"max_step_sequences", model_limits.max_step_sequences, 1},
  };
  for (const auto& check : checks) {
    if (check.value < check.low) {
      return absl::InvalidArgumentError(
          absl::StrCat(check.field, ": ", check.value, " is less than ", check.low));
    }
  }
  if (!(limits.prefill_share >= 0.0 && limits.prefill_share <= 1000.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill_share: ", limits.prefill_share, " is not in [0, 1000]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Model* model, const Tokenizer* tokenizer,
                                                       const EngineLimits& limits, Clock clock,
                                                       StepObserver* observer) {
  const ModelLimits& model_limits = model->limits();
  if (absl::Status status = CheckLimits(limits, model_limits); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Decoder>> decoder = Decoder::Create(model, limits.run_ahead);
  if (!decoder.ok()) return decoder.status();
  Capacity capacity;
  // Every running sequence takes one token of each step.
  capacity.running_sequences =
      std::min({limits.max_running_sequences, model_limits.max_step_sequences,
                model_limits.max_step_tokens});
  capacity.pages = model_limits.cache_pages;
  capacity.page_size = model_limits.page_size;
  capacity.encode_tokens = model_limits.max_encode_tokens;
  capacity.queue_tokens = limits.max_queue_tokens;
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<StepEngine>(
        Parts{model, tokenizer, limits, std::move(clock), observer, std::move(*decoder), capacity});
  });
}

}  // namespace quintet
