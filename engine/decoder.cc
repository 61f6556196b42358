#include "engine/decoder.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <span>

#include "engine/scheduler.h"
#include "kernels/base/check.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/parallel_blocks.h"

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
    QT_RETURN_IF_ERROR(decoder->Allocate());
    return decoder;
  });
}

Decoder::Decoder(Model* model, std::optional<bool> async_scheduling)
    : model_(model),
      async_scheduling_(async_scheduling.value_or(model->stream().backend() != Backend::kCpu)),
      batch_(model->limits(), &model->stream().pool()),
      sampler_(model, async_scheduling_),
      target_scores_(model) {}

int64_t Decoder::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  return Sampler::BufferBytes(config, limits, stream) + LabelBytes(config, limits) +
         TargetScores::BufferBytes(limits);
}

absl::Status Decoder::Allocate() {
  QT_ASSIGN_OR_RETURN(labels_,
                      model_->stream().Allocate(LabelBytes(model_->config(), model_->limits())));
  QT_RETURN_IF_ERROR(sampler_.Allocate());
  // All decoding jobs together have at most max_step_sequences sequences, and each has at least
  // one; hence there are at most that many jobs.
  const auto jobs = static_cast<size_t>(model_->limits().max_step_sequences);
  classes_.reserve(jobs);
  members_.reserve(jobs);
  slices_.reserve(jobs);
  prefill_left_.reserve(jobs);
  prefill_.reserve(jobs);
  inputs_.reserve(jobs);
  next_inputs_.reserve(jobs);
  next_moves_.reserve(jobs + 1);
  selecting_.reserve(jobs);
  scoring_.reserve(jobs);
  classifying_.reserve(jobs);
  return target_scores_.Allocate();
}

void Decoder::Reset() {
  next_slot_.reset();
  target_scores_.Clear();
}

absl::StatusOr<Decoder::StepSize> Decoder::Step(std::span<Job* const> jobs, int64_t prefill_tokens,
                                                const PriorityPressure& pressure,
                                                absl::FunctionRef<void()> meanwhile) {
  pressure_ = pressure;
  if (next_slot_.has_value() && InNextStep(jobs)) return FinishStepInFlight(jobs, meanwhile);
  next_slot_.reset();  // all its sequences have ended
  Gather(jobs, prefill_tokens);
  if (batch_.empty()) return StepSize{};
  // If the sampler can take all inputs in one sampling batch, that batch is planned on the host
  // before the decoder step is enqueued.
  const bool planned = sampler_.CountFitting(inputs_) == inputs_.size();
  if (planned) sampler_.Plan(inputs_, StepSlot::kFirst, /*whole_step=*/true);
  const int64_t sequences = batch_.sequences();
  const Tensor states = model_->Decode(batch_.Finish());
  ClassifyOutputs(states, Score(states, SampleAll(states, jobs, planned, meanwhile)));
  if (!next_slot_.has_value()) status_.Update(model_->stream().Synchronize());
  QT_RETURN_IF_ERROR(status_);
  for (const Job* job : jobs) {
    if (job->teacher_forcing() != nullptr) job->teacher_forcing()->Advance();
  }
  return StepSize{sequences, std::accumulate(prefill_.begin(), prefill_.end(), int64_t{0})};
}

void Decoder::Gather(std::span<Job* const> jobs, int64_t prefill_tokens) {
  classes_.clear();
  for (const Job* job : jobs) classes_.push_back(job->needs.priority);
  members_.clear();
  const Priority lowest = throttle_.LowestInStep(classes_, pressure_);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i]->needs.priority >= lowest) members_.push_back(i);
  }
  throttle_.RecordStep(members_.size() < jobs.size());

  int64_t budget = model_->limits().max_step_tokens;
  prefill_left_.clear();
  for (const size_t i : members_) {
    const DecodeTask* task = jobs[i]->task();
    budget -= task->generating_rows();
    prefill_left_.push_back(task->prefill_tokens_left());
  }
  QT_CHECK_GE(budget, 0);
  prefill_.resize(prefill_left_.size());
  SplitPrefillBudget(std::min(budget, prefill_tokens), prefill_left_, std::span(prefill_));
  AddMembers(jobs);
}

// Adds the tasks of the jobs that are in this step (members_) to batch_. The output rows for
// sampling come first, then those for target scores, then those for the task head.
void Decoder::AddMembers(std::span<Job* const> jobs) {
  batch_.Clear();
  inputs_.clear();
  scoring_.clear();
  classifying_.clear();
  for (size_t m = 0; m < members_.size(); ++m) {
    const Job* const job = jobs[members_[m]];
    Generation* const generation = job->generation();
    if (generation == nullptr) continue;
    batch_.SetAdapter(job->adapter);
    batch_.BeginGroup(job->id, job->source_slots);
    const auto sequence = static_cast<int32_t>(batch_.sequences());
    generation->AddTo(&batch_, prefill_[m]);
    if (generation->ReadyToSelect()) inputs_.push_back({job->id, generation, sequence});
  }
  for (const bool scores : {true, false}) {
    for (size_t m = 0; m < members_.size(); ++m) {
      Job* const job = jobs[members_[m]];
      TeacherForcing* const task = job->teacher_forcing();
      if (task == nullptr || task->scores() != scores) continue;
      batch_.SetAdapter(job->adapter);
      batch_.BeginGroup(job->id, job->source_slots);
      task->AddTo(&batch_, prefill_[m]);
      (scores ? scoring_ : classifying_).push_back(job);
    }
  }
}

// Samples the next tokens in one or more batches, each with as many generations as the sampler
// takes at once (Sampler::CountFitting). The results of one batch are applied before the next one
// is planned.
int64_t Decoder::SampleAll(const Tensor& states, std::span<Job* const> jobs, bool planned,
                           absl::FunctionRef<void()> meanwhile) {
  constexpr StepSlot kSlot = StepSlot::kFirst;
  int64_t row = 0;
  for (std::span<const SamplingInput> left = inputs_; !left.empty();) {
    const std::span<const SamplingInput> now = left.first(sampler_.CountFitting(left));
    if (!planned) sampler_.Plan(now, kSlot, /*whole_step=*/false);
    const int64_t end = row + sampler_.rows(kSlot);
    sampler_.Enqueue(states, row, kSlot);
    if (planned && batch_.sequences() == end) {
      MatchSlices(jobs, kSlot);
      EnqueueNextStep(jobs, kSlot);
    }
    if (row == 0) meanwhile();
    if (status_.Update(sampler_.Wait(kSlot)); !status_.ok()) return end;
    selecting_.clear();
    for (size_t i = 0; i < now.size(); ++i) {
      selecting_.push_back({now[i].generation, &sampler_.slices(kSlot)[i]});
    }
    sampler_.Select(selecting_, kSlot);
    row = end;
    left = left.subspan(now.size());
  }
  return row;
}

// ---- Async scheduling ----

// Sets slices_[i] to the SamplingSlice (where the generation's rows and results begin) of jobs[i]
// in the sampling batch of StepSlot `slot`, or to null if the job is not in that batch. Jobs keep
// their order from step to step, so one pass over both lists suffices.
void Decoder::MatchSlices(std::span<Job* const> jobs, StepSlot slot) {
  const std::span<const SamplingSlice> slices = sampler_.slices(slot);
  slices_.assign(jobs.size(), nullptr);
  size_t next = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    PrefetchAhead(jobs, i);
    size_t at = next;
    while (at < slices.size() && slices[at].id != jobs[i]->id) ++at;
    if (at == slices.size()) continue;  // skipped in that step, or new
    slices_[i] = &slices[at];
    next = at + 1;
  }
}

// Chooses the jobs (members_) and the sampler's inputs (next_inputs_) of the next step, the one
// after the step in flight. `current` is the StepSlot of the step in flight; slices_ must already
// be set for it (MatchSlices). Returns false if the next step has to be synchronous or has no job.
bool Decoder::PlanNextStep(std::span<Job* const> jobs, StepSlot current) {
  if (!async_scheduling_ || !model_->next_tokens().defined() ||
      !sampler_.NextTokensOnDevice(current))
    return false;
  members_.clear();  // candidates; skipped priorities are removed below
  classes_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    PrefetchAhead(jobs, i);
    if (slices_[i] != nullptr) {
      if (!jobs[i]->generation()->SelectsOnDevice()) return false;
      if (jobs[i]->generation()->LastTokenInFlight()) continue;
    }
    members_.push_back(i);
    classes_.push_back(jobs[i]->needs.priority);
  }
  if (members_.empty()) return false;
  const Priority lowest = throttle_.LowestInStep(classes_, pressure_);
  const size_t skipped =
      std::erase_if(members_, [&](size_t i) { return jobs[i]->needs.priority < lowest; });
  next_inputs_.clear();
  next_moves_.assign(1, 0);
  int32_t row = 0;
  for (const size_t i : members_) {
    Generation* const generation = jobs[i]->generation();
    const SamplingSlice* const slice = slices_[i];
    if (generation == nullptr || (slice == nullptr && !generation->CanJoinAsync())) return false;
    const bool in_flight = slice != nullptr;
    next_inputs_.push_back(
        {jobs[i]->id, generation, row, in_flight, in_flight ? slice->begin.row : -1});
    row += static_cast<int32_t>(in_flight ? generation->live_sequences().size()
                                          : static_cast<size_t>(generation->rows()));
    const int32_t moves = in_flight && generation->RanksBeamsTogether() ? 1 : 0;
    next_moves_.push_back(next_moves_.back() + moves);
  }
  if (members_.empty() || sampler_.CountFitting(next_inputs_) < next_inputs_.size()) return false;
  throttle_.RecordStep(skipped > 0);
  return true;
}

void Decoder::EnqueueNextStep(std::span<Job* const> jobs, StepSlot current) {
  if (!PlanNextStep(jobs, current)) return;
  const StepSlot slot = Other(current);
  sampler_.BeginPlan(next_inputs_, slot, /*whole_step=*/true);
  const auto members = static_cast<int64_t>(members_.size());
  batch_.Resize(sampler_.rows(slot), model_->config().has_encoder() ? members : 0,
                next_moves_.back());
  constexpr int64_t kMembersPerTask = 128;
  ForEachInBlocks(&model_->stream().pool(), members, kMembersPerTask, [&](int64_t member) {
    const auto m = static_cast<size_t>(member);
    PrefetchAhead(jobs, members_[m]);
    AddToNextStep(*jobs[members_[m]], m, current);
    sampler_.PlanOne(next_inputs_, m, slot);
  });
  sampler_.EndPlan(slot);
  sampler_.EnqueueStep(batch_.Finish(), slot);
  next_slot_ = slot;
}

// Adds one generation, members_[member], to the next step. Threads call this concurrently for
// different members.
void Decoder::AddToNextStep(const Job& job, size_t member, StepSlot current) {
  Generation* const generation = job.generation();
  const SamplingInput& input = next_inputs_[member];
  const SamplingSlice* const slice = slices_[members_[member]];
  int64_t at = input.sequence;
  const bool last = member + 1 == members_.size();
  const int64_t end = last ? batch_.sequences() : next_inputs_[member + 1].sequence;
  batch_.SetAdapters(at, end, job.adapter);
  if (model_->config().has_encoder()) {
    batch_.SetGroup(static_cast<int64_t>(member), end, job.id, job.source_slots);
  }
  if (slice == nullptr) return generation->Join(&batch_, at);
  const std::span<const int32_t> sequences = sampler_.SequencesOf(*slice, current);
  if (generation->RanksBeamsTogether()) {
    batch_.SetMove(next_moves_[member],
                   {input.sequence, static_cast<int32_t>(sequences.size()), slice->begin.row});
  }
  int32_t entry = 0;
  for (const int32_t seq : generation->live_sequences()) {
    while (sequences[static_cast<size_t>(entry)] != seq) ++entry;  // that sequence has ended since
    generation->SetInFlight(&batch_, at++, seq, -1 - (slice->begin.row + entry));
    ++entry;
  }
}

// Returns whether some job of `jobs` is in the step that is already enqueued (next_slot_).
bool Decoder::InNextStep(std::span<Job* const> jobs) const {
  const std::span<const SamplingSlice> slices = sampler_.slices(*next_slot_);
  return std::any_of(jobs.begin(), jobs.end(), [&](const Job* job) {
    return std::any_of(slices.begin(), slices.end(),
                       [&](const SamplingSlice& slice) { return slice.id == job->id; });
  });
}

// Finishes the step in flight: enqueues the step after it if possible, then waits for the results
// of the step in flight and applies them.
absl::StatusOr<Decoder::StepSize> Decoder::FinishStepInFlight(std::span<Job* const> jobs,
                                                              absl::FunctionRef<void()> meanwhile) {
  const StepSlot slot = *next_slot_;
  next_slot_.reset();
  MatchSlices(jobs, slot);
  EnqueueNextStep(jobs, slot);
  meanwhile();
  status_.Update(sampler_.Wait(slot));
  QT_RETURN_IF_ERROR(status_);
  selecting_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (slices_[i] != nullptr) selecting_.push_back({jobs[i]->generation(), slices_[i]});
  }
  sampler_.Select(selecting_, slot);
  return StepSize{sampler_.rows(slot), 0};
}

int64_t Decoder::Score(const Tensor& states, int64_t row) {
  for (Job* job : scoring_) {
    for (const auto& row_target : job->teacher_forcing()->output_rows()) {
      target_scores_.Add(row_target.target, job->request.top_logprobs,
                         &job->result.targets[row_target.item], &job->out_of_memory);
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

void Decoder::ClassifyOutputs(const Tensor& states, int64_t row) {
  for (Job* job : classifying_) {
    const int64_t count = static_cast<int64_t>(job->teacher_forcing()->output_rows().size());
    if (count == 0) continue;
    Result& result = job->result;
    try {
      Classify(states.Rows(row, row + count), &result.values);
    } catch (const std::bad_alloc&) {
      job->out_of_memory = true;
    }
    result.rows += count;
    result.columns = model_->config().labels;
    row += count;
  }
}

}  // namespace quintet
