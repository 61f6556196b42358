#include "engine/decoder.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "engine/scheduler.h"
#include "kernels/check.h"
#include "kernels/out_of_memory.h"

namespace quintet {
namespace {

int64_t LabelBytes(const ModelConfig& config, const ModelLimits& limits) {
  return limits.max_step_tokens * std::max<int64_t>(1, config.labels) * 4;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(Model* model,
                                                         std::optional<bool> async_scheduling) {
  return CatchOutOfMemory([&]() -> absl::StatusOr<std::unique_ptr<Decoder>> {
    auto decoder = std::unique_ptr<Decoder>(new Decoder(model, async_scheduling));
    const absl::Status status = decoder->Allocate();
    if (!status.ok()) return status;
    return decoder;
  });
}

Decoder::Decoder(Model* model, std::optional<bool> async_scheduling)
    : model_(model),
      async_scheduling_(async_scheduling.value_or(model->stream().backend() != Backend::kCpu)),
      batch_(model->limits()),
      sampler_(model, async_scheduling_),
      target_scores_(model) {}

int64_t Decoder::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  return Sampler::BufferBytes(config, stream) + LabelBytes(config, limits) +
         TargetScores::BufferBytes(limits);
}

absl::Status Decoder::Allocate() {
  absl::StatusOr<Buffer> labels =
      model_->stream().Allocate(LabelBytes(model_->config(), model_->limits()));
  if (!labels.ok()) return labels.status();
  labels_ = *std::move(labels);
  if (absl::Status status = sampler_.Allocate(); !status.ok()) return status;
  // Every job has a sequence at least.
  const auto jobs = static_cast<size_t>(model_->limits().max_step_sequences);
  classes_.reserve(jobs);
  members_.reserve(jobs);
  slices_.reserve(jobs);
  prefill_left_.reserve(jobs);
  prefill_.reserve(jobs);
  inputs_.reserve(jobs);
  next_inputs_.reserve(jobs);
  selecting_.reserve(jobs);
  scoring_.reserve(jobs);
  stating_.reserve(jobs);
  return target_scores_.Allocate();
}

void Decoder::Reset() {
  next_slot_.reset();
  target_scores_.Clear();
}

absl::StatusOr<Decoder::StepSize> Decoder::Step(absl::Span<const DecoderJob> jobs,
                                                int64_t prefill_tokens,
                                                const PriorityPressure& pressure,
                                                absl::FunctionRef<void()> meanwhile) {
  pressure_ = pressure;
  if (next_slot_.has_value() && InNextStep(jobs)) return FinishStepInFlight(jobs, meanwhile);
  next_slot_.reset();  // nobody waits for it
  Gather(jobs, prefill_tokens);
  if (batch_.empty()) return StepSize{};
  // A plan is on the device before the step begins.
  const bool planned = sampler_.CountFitting(inputs_) == inputs_.size();
  if (planned) sampler_.Plan(inputs_, 0);
  const int64_t sequences = batch_.sequences();
  const Tensor states = model_->Decode(batch_.Finish());
  CollectStates(states, Score(states, SampleAll(states, jobs, planned, meanwhile)));
  if (!next_slot_.has_value()) status_.Update(model_->stream().Synchronize());
  if (!status_.ok()) return status_;
  for (const DecoderJob& job : jobs) {
    if (job.forced != nullptr) job.forced->Advance();
  }
  return StepSize{sequences, std::accumulate(prefill_.begin(), prefill_.end(), int64_t{0})};
}

void Decoder::Gather(absl::Span<const DecoderJob> jobs, int64_t prefill_tokens) {
  classes_.clear();
  for (const DecoderJob& job : jobs) classes_.push_back(job.priority);
  members_.clear();
  const Priority lowest = throttle_.LowestInStep(classes_, pressure_);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].priority >= lowest) members_.push_back(i);
  }
  throttle_.RecordStep(members_.size() < jobs.size());

  int64_t budget = model_->limits().max_step_tokens;
  prefill_left_.clear();
  for (const size_t i : members_) {
    const DecodeTask* task = jobs[i].generation != nullptr
                                 ? static_cast<DecodeTask*>(jobs[i].generation)
                                 : jobs[i].forced;
    budget -= task->generating_rows();
    prefill_left_.push_back(task->prefill_tokens_left());
  }
  QT_CHECK_GE(budget, 0);
  prefill_.resize(prefill_left_.size());
  SplitPrefillBudget(std::min(budget, prefill_tokens), prefill_left_, absl::MakeSpan(prefill_));
  AddMembers(jobs);
}

// Wanted rows in one piece for each use: search, scores, states.
void Decoder::AddMembers(absl::Span<const DecoderJob> jobs) {
  batch_.Clear();
  inputs_.clear();
  scoring_.clear();
  stating_.clear();
  for (size_t m = 0; m < members_.size(); ++m) {
    const DecoderJob& job = jobs[members_[m]];
    if (job.generation == nullptr) continue;
    batch_.BeginGroup(job.id, job.source_slots);
    const auto sequence = static_cast<int32_t>(batch_.sequences());
    job.generation->AddTo(&batch_, prefill_[m]);
    if (job.generation->ReadyToSelect()) inputs_.push_back({job.id, job.generation, sequence});
  }
  for (const bool scores : {true, false}) {
    for (size_t m = 0; m < members_.size(); ++m) {
      const DecoderJob& job = jobs[members_[m]];
      if (job.forced == nullptr || job.forced->scores() != scores) continue;
      batch_.BeginGroup(job.id, job.source_slots);
      job.forced->AddTo(&batch_, prefill_[m]);
      (scores ? scoring_ : stating_).push_back(&job);
    }
  }
}

// As many at once as fit one search.
int64_t Decoder::SampleAll(const Tensor& states, absl::Span<const DecoderJob> jobs, bool planned,
                           absl::FunctionRef<void()> meanwhile) {
  int64_t row = 0;
  for (absl::Span<const SamplingInput> left = inputs_; !left.empty();) {
    const absl::Span<const SamplingInput> now = left.first(sampler_.CountFitting(left));
    if (!planned) sampler_.Plan(now, 0);
    const int64_t end = row + sampler_.rows(0);
    sampler_.Enqueue(states.Rows(row, end), 0);
    if (planned && batch_.sequences() == end) EnqueueNextStep(jobs, 0);
    if (row == 0) meanwhile();
    if (status_.Update(sampler_.Wait(0)); !status_.ok()) return end;
    selecting_.clear();
    for (size_t i = 0; i < now.size(); ++i) {
      selecting_.push_back({now[i].generation, &sampler_.slices(0)[i]});
    }
    sampler_.Select(selecting_, 0);
    row = end;
    left.remove_prefix(now.size());
  }
  return row;
}

// ---- Steps ahead ----

// Jobs keep their order from step to step.
void Decoder::MatchSlices(absl::Span<const DecoderJob> jobs, int which) {
  const absl::Span<const SamplingSlice> slices = sampler_.slices(which);
  slices_.assign(jobs.size(), nullptr);
  size_t next = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    size_t at = next;
    while (at < slices.size() && slices[at].id != jobs[i].id) ++at;
    if (at == slices.size()) continue;  // it rests, or is new
    slices_[i] = &slices[at];
    next = at + 1;
  }
}

// Who takes slice in the step after the one under way. False: it cannot be queued yet, or nobody.
bool Decoder::PlanNextStep(absl::Span<const DecoderJob> jobs, int in_flight) {
  if (!async_scheduling_ || !model_->chosen().defined() || !sampler_.NextTokensOnDevice(in_flight))
    return false;
  MatchSlices(jobs, in_flight);
  members_.clear();  // first all that could take slice
  classes_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (slices_[i] != nullptr) {
      if (!jobs[i].generation->SelectsOnDevice()) return false;
      if (jobs[i].generation->LastTokenInFlight()) continue;
    }
    members_.push_back(i);
    classes_.push_back(jobs[i].priority);
  }
  if (members_.empty()) return false;
  const Priority lowest = throttle_.LowestInStep(classes_, pressure_);
  const size_t skipped =
      std::erase_if(members_, [&](size_t i) { return jobs[i].priority < lowest; });
  for (const size_t i : members_) {
    const Generation* generation = jobs[i].generation;
    if (generation == nullptr) return false;
    if (!(slices_[i] != nullptr ? generation->CanScheduleAsync() : generation->CanJoinAsync()))
      return false;
  }
  next_inputs_.clear();
  for (const size_t i : members_) {
    const SamplingSlice* slice = slices_[i];
    next_inputs_.push_back(
        {jobs[i].id, jobs[i].generation, 0, slice != nullptr, slice != nullptr ? slice->row : -1});
  }
  if (members_.empty() || sampler_.CountFitting(next_inputs_) < next_inputs_.size()) return false;
  throttle_.RecordStep(skipped > 0);
  return true;
}

void Decoder::EnqueueNextStep(absl::Span<const DecoderJob> jobs, int in_flight) {
  if (!PlanNextStep(jobs, in_flight)) return;
  batch_.Clear();
  for (size_t m = 0; m < members_.size(); ++m) {
    const DecoderJob& job = jobs[members_[m]];
    next_inputs_[m].sequence = static_cast<int32_t>(batch_.sequences());
    batch_.BeginGroup(job.id, job.source_slots);
    AddToNextStep(job, slices_[members_[m]], in_flight);
  }
  const int which = 1 - in_flight;
  sampler_.Plan(next_inputs_, which);
  sampler_.EnqueueStep(batch_.Finish(), which);
  next_slot_ = which;
}

// The sequences of one generation: `slice` is what the search under way chooses for it, or null.
void Decoder::AddToNextStep(const DecoderJob& job, const SamplingSlice* slice, int in_flight) {
  if (slice == nullptr)
    return job.generation->AddTo(&batch_, job.generation->prefill_tokens_left());
  const absl::Span<const int32_t> sequences = sampler_.SequencesOf(*slice, in_flight);
  if (job.generation->RanksBeamsTogether()) {
    batch_.ReorderNext(static_cast<int32_t>(sequences.size()), slice->row);
  }
  size_t entry = 0;
  for (const int32_t seq : job.generation->live_sequences()) {
    while (sequences[entry] != seq) ++entry;  // others have ended since that search was queued
    job.generation->AddInFlight(&batch_, seq, -1 - (slice->row + static_cast<int32_t>(entry)));
    ++entry;
  }
}

// Whether some job is in the step queued ahead.
bool Decoder::InNextStep(absl::Span<const DecoderJob> jobs) const {
  const absl::Span<const SamplingSlice> slices = sampler_.slices(*next_slot_);
  return std::any_of(jobs.begin(), jobs.end(), [&](const DecoderJob& job) {
    return std::any_of(slices.begin(), slices.end(),
                       [&](const SamplingSlice& slice) { return slice.id == job.id; });
  });
}

// Takes the results of the step queued ahead, with the one after it under way where possible.
absl::StatusOr<Decoder::StepSize> Decoder::FinishStepInFlight(absl::Span<const DecoderJob> jobs,
                                                              absl::FunctionRef<void()> meanwhile) {
  const int which = *next_slot_;
  next_slot_.reset();
  EnqueueNextStep(jobs, which);
  meanwhile();
  if (status_.Update(sampler_.Wait(which)); !status_.ok()) return status_;
  MatchSlices(jobs, which);  // others have ended since
  selecting_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (slices_[i] != nullptr) selecting_.push_back({jobs[i].generation, slices_[i]});
  }
  sampler_.Select(selecting_, which);
  return StepSize{sampler_.rows(which), 0};
}

int64_t Decoder::Score(const Tensor& states, int64_t row) {
  for (const DecoderJob* job : scoring_) {
    for (const auto& output_rows : job->forced->output_rows()) {
      target_scores_.Add(output_rows.target, job->top_logprobs,
                         &job->result->targets[output_rows.item], job->out_of_memory);
    }
  }
  const int64_t end = row + target_scores_.rows();
  status_.Update(target_scores_.Score(states.Rows(row, end)));
  return end;
}

void Decoder::AppendRows(const Tensor& rows, std::vector<float>* values) const {
  const size_t before = values->size();
  values->resize(before + static_cast<size_t>(rows.elements()));
  model_->stream().Read(rows, values->data() + before);
}

void Decoder::Classify(const Tensor& states, std::vector<float>* values) {
  const int64_t labels = model_->config().labels, room = model_->limits().max_step_tokens;
  for (int64_t begin = 0; begin < states.dim[0]; begin += room) {
    const int64_t rows = std::min(room, states.dim[0] - begin);
    const Tensor logits = Tensor::Dense(labels_.data(), DType::kF32, {rows, labels});
    model_->Classify(states.Rows(begin, begin + rows), logits);
    AppendRows(logits, values);
  }
}

void Decoder::CollectStates(const Tensor& states, int64_t row) {
  for (const DecoderJob* job : stating_) {
    const int64_t count = static_cast<int64_t>(job->forced->output_rows().size());
    if (count == 0) continue;
    Result& result = *job->result;
    try {
      Classify(states.Rows(row, row + count), &result.values);
    } catch (const std::bad_alloc&) {
      *job->out_of_memory = true;
    }
    result.rows += count;
    result.columns = model_->config().labels;
    row += count;
  }
}

}  // namespace quintet
