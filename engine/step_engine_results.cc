#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/step_engine.h"
#include "kernels/check.h"

namespace quintet {
namespace {

void CountScored(Result* result) {
  for (const ScoredTarget& target : result->targets) result->output_tokens += target.tokens.size();
}

}  // namespace

void StepEngine::OnEncoded(Job* job, const EncodedStates& encoded) {
  job->encoded_us = clock_();
  if (job->task() != nullptr) {
    job->MoveTo(JobState::kDecoding);
    decoding_.push_back(job);
    return;
  }
  if (job->kind() == RequestKind::kEncode) return pending_encodes_.push_back({job, encoded});
  absl::Status status;
  try {
    status = CompletePart(job, encoded);
    device_status_.Update(status);
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
  if (job->out_of_memory) return Finish(job, JobState::kFailed, out_of_memory_);
  if (status.ok() && job->scored != nullptr && !job->scored->done()) {
    return continuations_.push_back(job);
  }
  Finish(job, status.ok() ? JobState::kDone : JobState::kFailed, status);
}

// The status is the device's.
absl::Status StepEngine::CompletePart(Job* job, const EncodedStates& encoded) {
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
void StepEngine::CompleteEncodes() {
  if (pending_encodes_.empty()) return;
  const Stream& stream = model_->stream();
  const absl::Status status = stream.Synchronize();
  device_status_.Update(status);
  int64_t values = 0;
  for (const PendingEncode& encoded : pending_encodes_) values += encoded.PooledStates().elements();
  const auto pool = [this](int64_t i, int) {
    const Tensor read = pending_encodes_[i].PooledStates();
    Job& job = *pending_encodes_[i].job;
    try {
      PoolStates(job.request, {read.f32(), static_cast<size_t>(read.elements())}, read.dim[1],
                 &job.result);
    } catch (const std::bad_alloc&) {
      job.out_of_memory = true;
    }
  };
  constexpr int64_t kMany = int64_t{1} << 16;  // worth waking threads for
  const auto jobs = static_cast<int64_t>(pending_encodes_.size());
  if (values >= kMany) {
    stream.pool().ParallelFor(jobs, pool);
  } else {
    for (int64_t i = 0; i < jobs; ++i) pool(i, 0);
  }
  for (const PendingEncode& encoded : pending_encodes_) {
    const bool failed = status.ok() && encoded.job->out_of_memory;
    const absl::Status& outcome = failed ? out_of_memory_ : status;
    Finish(encoded.job, outcome.ok() ? JobState::kDone : JobState::kFailed, outcome);
  }
  pending_encodes_.clear();
}

void StepEngine::Decode(bool streams, int64_t prefill_us) {
  // Where steps run ahead the last step's results may still be here though all that decoded have
  // ended since.
  if (decoding_.empty()) return SendOutputs();
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
    size = decoder_->Step(decoder_jobs_, pace_.PrefillTokens(streams, prefill_us),
                          CurrentPressure(), [this] { SendOutputs(); });
  } catch (const std::bad_alloc&) {
    // Which sequences have the step's tokens is unknown.
    decoder_->Reset();
    for (Job* job : decoding_) job->out_of_memory = true;
  }
  SendOutputs();  // what an earlier step left, unless that has happened meanwhile
  if (!size.ok()) return FailAll(size.status());
  const int64_t now = clock_();
  if (size->sequences > 0) {
    pace_.RecordDecode(streams, size->prefill_tokens, now - begin_us);
    OnStepTokens(*size, before, now);
  }  // otherwise it was left to the encoder
  FinishOutOfMemory();
}

void StepEngine::OnStepTokens(const Decoder::StepSize& size, int64_t new_tokens_before,
                              int64_t now) {
  batch_.clear();
  token_gaps_us_.clear();
  int64_t after = 0;
  for (Job* job : decoding_) {
    if (job->generation != nullptr) after += job->generation->new_tokens();
    if (job->ran_out_of_memory()) continue;
    if (job->generation != nullptr) {
      if (job->generation->chosen_length() > job->counted_length) CountToken(job, now);
    }
    if (job->task()->done()) batch_.push_back(job);
  }
  if (observer_ != nullptr) observer_->OnStep({size.sequences, token_gaps_us_});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    counters_.generated_tokens += after - new_tokens_before;
  }
  for (Job* job : batch_) outputs_.AddDone(ReleaseResources(job, JobState::kDone));
  if (!decoder_->async_scheduling() || decoding_.empty()) SendOutputs();
}

// The request has a token more.
void StepEngine::CountToken(Job* job, int64_t now) {
  if (job->first_token_us == 0) {
    job->first_token_us = now;
  } else {
    token_gaps_us_.push_back(now - job->last_token_us);
  }
  job->last_token_us = now;
  job->counted_length = job->generation->chosen_length();
  if (job->request.stream && !job->generation->done()) outputs_.AddTokens(job);
}

void StepEngine::SendOutputs() {
  outputs_.SendAll([this](Job* job) { NotifyDone(job); });
}

void StepEngine::NotifyDone(Job* job) {
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
  Notify(job, /*was_queued=*/false, job->out_of_memory ? out_of_memory_ : absl::OkStatus());
}

// Ends the jobs that an allocation failed for.
void StepEngine::FinishOutOfMemory() {
  batch_.clear();
  for (const auto& [id, job] : jobs_) {
    if (job->ran_out_of_memory()) batch_.push_back(job.get());
  }
  for (Job* job : batch_) Finish(job, JobState::kFailed, out_of_memory_);
}

// The device failed: what runs on it is lost, and nothing can follow.
void StepEngine::FailAll(const absl::Status& status) {
  SendOutputs();
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
    Finish(job, JobState::kFailed, job->state == JobState::kQueued ? broken_ : status);
  }
}

void StepEngine::Finish(Job* job, JobState state, const absl::Status& status) {
  const bool was_queued = job->state == JobState::kQueued;
  outputs_.SendTokensOf(job);
  const std::unique_ptr<Job> owned = ReleaseResources(job, state);
  Notify(job, was_queued, status);
}

// Releases the pages and sequence slots of the job.
std::unique_ptr<Job> StepEngine::ReleaseResources(Job* job, JobState state) {
  if (job->state == JobState::kQueued) {
    QT_CHECK(scheduler_.Remove(job->id));
  } else {
    if (job->state == JobState::kEncoding) encoder_.Remove(job);
    std::erase(continuations_, job);
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
void StepEngine::Notify(Job* job, bool was_queued, const absl::Status& status) {
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

}  // namespace quintet
