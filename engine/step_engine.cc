#include "engine/step_engine.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "engine/reserve.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"

namespace quintet {

StepEngine::StepEngine(StepEngineParts parts)
    : model_(parts.model),
      tokenizer_(parts.tokenizer),
      clock_(std::move(parts.clock)),
      observer_(parts.observer),
      capacity_(parts.capacity),
      admission_sequences_(
          std::min(parts.limits.admission_sequences, parts.capacity.running_sequences)),
      max_admission_delay_steps_(parts.limits.max_admission_delay_steps),
      encode_before_decoding_(parts.limits.encode_before_decoding),
      requests_(parts.limits, capacity_.pages),
      decoder_(std::move(parts.decoder)),
      pace_(parts.limits.prefill_share),
      encoder_cache_(parts.limits.encoder_cache_bytes),
      encoder_(model_, &encoder_cache_, decoder_->target_scores(), clock_),
      jobs_(capacity_, &requests_, &encoder_, model_, clock_) {}

absl::StatusOr<RequestId> StepEngine::Submit(Request request) {
  return CatchOutOfMemory([&] { return PlanAndAdd(std::move(request)); });
}

absl::StatusOr<RequestId> StepEngine::PlanAndAdd(Request request) {
  // Refuses the request before any work is done for it if the queue is full or the device has
  // failed. A burst of requests then costs little.
  QT_RETURN_IF_ERROR(requests_.CheckOpen());
  const int64_t now = clock_();
  QT_ASSIGN_OR_RETURN(std::unique_ptr<Job> job,
                      PlanJob(std::move(request), model_->config(), tokenizer_, capacity_));
  return requests_.Add(std::move(job), now);
}

bool StepEngine::Step() {
  model_->stream().Use();
  jobs_.TakeArrivals([this](size_t jobs) { Reserve(jobs); });
  jobs_.FinishCancelled();
  const int64_t now = clock_();
  jobs_.FinishExpired(now);
  Admit(now);
  const bool streams = HasRunningStreams();
  const int64_t prefill_us = pace_.PrefillUs(streams);
  const int64_t begin_us = clock_();
  Encode(prefill_us);
  CompleteEncodes();
  // The status of the encode phase is checked here, and not only after decoding: if no job decodes,
  // no decoder step follows that would report a failed device.
  if (!encode_status_.ok()) jobs_.FailAll(encode_status_);
  if (filling_) {
    jobs_.SendOutputs();
  } else {
    Decode(streams, prefill_us - (clock_() - begin_us));
  }
  return requests_.OnStep(jobs_.used_pages(), encoder_cache_.queries(), encoder_cache_.hits());
}

// Reserves memory for `jobs` jobs in every list. Called when a job arrives. Therefore a failed
// allocation fails only that job, and steps allocate nothing for these lists.
void StepEngine::Reserve(size_t jobs) {
  for (auto* list : {&admitted_, &encode_batch_, &failed_encodes_, &done_}) {
    EnsureCapacity(jobs, list);
  }
  EnsureCapacity(jobs, &token_gaps_us_);
  pooling_.Reserve(jobs);
  encoder_.Reserve(jobs);
}

// Admits new requests and puts the next parts of long scoring requests into the next encoder batch.
// Which of the two comes first alternates from batch to batch; hence neither starves the other of
// encoder tokens.
void StepEngine::Admit(int64_t now) {
  const bool admits_more = std::exchange(filling_, false);
  if (jobs_.waiting() == 0 && !encoder_.has_continuations()) return;
  encode_batch_.clear();
  AdmissionBudget budget = jobs_.FreeBudget();
  budget.encode_tokens = encoder_.active() ? 0 : capacity_.encode_tokens;
  if (continuations_first_) AdmitContinuations(&budget);
  admitted_.clear();
  if (admits_more || budget.sequences >= admission_sequences_ || jobs_.decoding().empty() ||
      delayed_steps_ >= max_admission_delay_steps_) {
    delayed_steps_ = 0;
    jobs_.Admit(now, budget, &admitted_);
  } else {
    ++delayed_steps_;
  }
  StartAdmitted(now);
  filling_ = MoreWillDecode(budget.sequences);
  for (Job* job : admitted_) {
    if (DecodeOrAddToEncode(job, now)) budget.encode_tokens -= job->needs.encode_tokens;
  }
  if (!continuations_first_) AdmitContinuations(&budget);
  if (encode_batch_.empty()) return;
  continuations_first_ = !continuations_first_;
  try {
    encoder_.Begin(encode_batch_);
  } catch (const std::bad_alloc&) {
    FailEncodes(&encode_batch_);
  }
}

// Whether the current engine step (StepEngine::Step) should skip its decoder step, so that the next
// engine step can first admit and encode more requests. True if the current engine step has
// admitted sequences to decode, more requests wait, and there is room for further sequences. Every
// engine step that skips decoding for this reason has admitted at least one sequence, and the
// number of sequences is limited; hence requests that are never decoded (encode, for example)
// cannot delay the decoder for ever. `free_before`: the number of further sequences for which there
// was room before the current engine step admitted any.
bool StepEngine::MoreWillDecode(int64_t free_before) const {
  const int64_t free = jobs_.FreeBudget().sequences;
  return encode_before_decoding_ && jobs_.waiting() > 0 && free > 0 && free < free_before;
}

// Starts the jobs in admitted_; finishes those for which an allocation failed and removes them from
// admitted_.
void StepEngine::StartAdmitted(int64_t now) {
  for (Job* job : admitted_) {
    job->MoveTo(job->encodes ? JobState::kEncoding : JobState::kDecoding);
  }
  jobs_.Start(admitted_, now);
  std::erase_if(admitted_, [this](Job* job) {
    if (!job->out_of_memory) return false;
    jobs_.FinishOutOfMemory(job);
    return true;
  });
}

// Starts decoding a job that does not encode. Otherwise takes the job's hidden states from the
// cache of encoder outputs or, if they are not there, adds the job's input to the encoder batch.
// Returns whether the input was added to the batch.
bool StepEngine::DecodeOrAddToEncode(Job* job, int64_t now) {
  if (!job->encodes) {
    job->encoded_us = now;
    StartDecoding(job);
    return false;
  }
  // Cached hidden states are in host memory. A task head needs hidden states in the memory of the
  // model's backend; hence it can use cached ones only on a CPU.
  const bool usable = !job->classify_encoded || model_->stream().backend() == Backend::kCpu;
  EncodedStates cached;
  if (usable && job->scoring() == nullptr)
    cached = encoder_cache_.Find(job->request.input, job->adapter_id());
  if (cached.owner == nullptr) {
    encode_batch_.push_back(job);
    return true;
  }
  job->result.cached_tokens = cached.states.dim[0];
  encoder_.AddCached(job, std::move(cached));
  return false;
}

void StepEngine::StartDecoding(Job* job) {
  if (job->generation() != nullptr && decoder_->async_scheduling()) {
    job->generation()->StartFannedOut();
  }
  jobs_.StartDecoding(job);
}

void StepEngine::AdmitContinuations(AdmissionBudget* budget) {
  encoder_.TakeContinuations([&](Job* job) {
    if (job->needs.encode_tokens > budget->encode_tokens) return false;
    budget->encode_tokens -= job->needs.encode_tokens;
    encode_batch_.push_back(job);
    return true;
  });
}

// Encodes for about `prefill_us` microseconds. If an allocation fails meanwhile, every job in the
// encoder fails.
void StepEngine::Encode(int64_t prefill_us) {
  try {
    encoder_.Advance(prefill_us,
                     [this](Job* job, const EncodedStates& encoded) { OnEncoded(job, encoded); });
  } catch (const std::bad_alloc&) {
    failed_encodes_.clear();
    encoder_.Jobs(&failed_encodes_);
    FailEncodes(&failed_encodes_);
  }
}

// `jobs` may contain a job twice: once for its input (being encoded) and once for the projection of
// its encoder output.
void StepEngine::FailEncodes(std::vector<Job*>* jobs) {
  std::sort(jobs->begin(), jobs->end(), [](const Job* a, const Job* b) { return a->id < b->id; });
  jobs->erase(std::unique(jobs->begin(), jobs->end()), jobs->end());
  for (Job* job : *jobs) jobs_.FinishOutOfMemory(job);
}

bool StepEngine::HasRunningStreams() const {
  return std::any_of(jobs_.decoding().begin(), jobs_.decoding().end(),
                     [](const Job* job) { return job->task()->generating_rows() > 0; });
}

// ---- Results of the encode phase ----

void StepEngine::OnEncoded(Job* job, const EncodedStates& encoded) {
  job->encoded_us = clock_();
  if (job->task() != nullptr) {
    job->MoveTo(JobState::kDecoding);
    return StartDecoding(job);
  }
  if (job->kind() == RequestKind::kEncode) return pooling_.Add(job, encoded);
  absl::Status status;
  try {
    status = CompletePart(job, encoded);
    encode_status_.Update(status);
  } catch (const std::bad_alloc&) {
    job->out_of_memory = true;
  }
  if (job->out_of_memory) return jobs_.FinishOutOfMemory(job);
  if (status.ok() && job->scoring() != nullptr && !job->scoring()->done()) {
    return encoder_.AddContinuation(job);
  }
  jobs_.Finish(job, status.ok() ? JobState::kDone : JobState::kFailed, status);
}

// For a scoring job, waits until the scores of the current part have been computed and moves on to
// the job's next part; for a classify job, runs the task head on the encoded input. Returns the
// device's status.
absl::Status StepEngine::CompletePart(Job* job, const EncodedStates& encoded) {
  Result& result = job->result;
  if (PackedScoring* const scoring = job->scoring(); scoring != nullptr) {
    const absl::Status status = model_->stream().Synchronize();
    scoring->Advance();
    if (scoring->done()) job->CountScoredTokens();
    return status;
  }
  // Runs the task head on row encoded_row of `states`, or on all rows if encoded_row is negative.
  const Tensor& states = encoded.states;
  const int64_t row = job->encoded_row;
  result.columns = model_->config().labels;
  decoder_->Classify(row < 0 ? states : states.Rows(row, row + 1), &result.values);
  result.rows = static_cast<int64_t>(result.values.size()) / result.columns;
  return model_->stream().Synchronize();  // for its status: Classify may have copied no rows
}

void StepEngine::CompleteEncodes() {
  if (pooling_.empty()) return;
  const absl::Status status = pooling_.Pool(model_->stream());
  encode_status_.Update(status);
  pooling_.Drain([&](Job* job) {
    if (status.ok() && job->out_of_memory) return jobs_.FinishOutOfMemory(job);
    jobs_.Finish(job, status.ok() ? JobState::kDone : JobState::kFailed, status);
  });
}

// ---- The decode phase ----

void StepEngine::Decode(bool streams, int64_t prefill_us) {
  // With async scheduling the outputs of the previous step may still be queued, although all jobs
  // that decoded in it have ended. Decoder::Step, which usually calls SendOutputs, does not run
  // then.
  if (jobs_.decoding().empty()) return jobs_.SendOutputs();
  const int64_t begin_us = clock_();
  absl::StatusOr<Decoder::StepSize> size = Decoder::StepSize{};
  try {
    size = decoder_->Step(jobs_.decoding(), pace_.PrefillTokens(streams, prefill_us),
                          jobs_.CurrentPressure(), [this] { jobs_.SendOutputs(); });
  } catch (const std::bad_alloc&) {
    // An allocation has failed within the decoder step. It is unknown which sequences already have
    // the step's tokens; therefore all decoding jobs fail.
    decoder_->Reset();
    for (Job* job : jobs_.decoding()) job->out_of_memory = true;
  }
  jobs_.SendOutputs();  // outputs of the previous step, if the decoder has not sent them
  if (!size.ok()) return jobs_.FailAll(size.status());
  const int64_t now = clock_();
  if (size->sequences > 0) {  // 0: the step was left to the encoder
    pace_.RecordDecode(streams, size->prefill_tokens, now - begin_us);
    if (OnTokens(*size, now)) return;
  }
  jobs_.FinishOutOfMemory();
}

// Queues for delivery the tokens that a decoder step has chosen, and the results of ended jobs.
// Returns false if some job has run out of memory.
bool StepEngine::OnTokens(const Decoder::StepSize& size, int64_t now) {
  int64_t new_tokens = 0;
  bool all_well = true;
  done_.clear();
  token_gaps_us_.clear();
  const std::span<Job* const> jobs = jobs_.decoding();
  for (size_t i = 0; i < jobs.size(); ++i) {
    PrefetchAhead(jobs, i);
    Job* const job = jobs[i];
    if (job->ran_out_of_memory()) {
      all_well = false;
      continue;
    }
    const Generation* const generation = job->generation();
    if (generation != nullptr && generation->chosen_length() > job->counted_length) {
      new_tokens += generation->new_tokens() - job->counted_tokens;
      CountToken(job, now);
    }
    if (job->task()->done()) done_.push_back(job);
  }
  if (observer_ != nullptr) observer_->OnStep({size.sequences, token_gaps_us_});
  requests_.AddGenerated(new_tokens);
  jobs_.QueueDone(done_);
  if (!decoder_->async_scheduling() || jobs_.decoding().empty()) jobs_.SendOutputs();
  return all_well;
}

// Records the time of the job's new token and queues the token for streaming.
void StepEngine::CountToken(Job* job, int64_t now) {
  if (job->first_token_us == 0) {
    job->first_token_us = now;
  } else {
    token_gaps_us_.push_back(now - job->last_token_us);
  }
  job->last_token_us = now;
  job->counted_length = job->generation()->chosen_length();
  job->counted_tokens = job->generation()->new_tokens();
  if (job->streams && !job->generation()->done()) jobs_.QueueTokens(job);
}

}  // namespace quintet
