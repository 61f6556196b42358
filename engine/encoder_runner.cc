#include "engine/encoder_runner.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "engine/pooling.h"
#include "engine/reserve.h"
#include "kernels/base/check.h"

namespace quintet {

namespace {

constexpr int64_t kMaxPoolings = 8;  // more than one input can have

}  // namespace

EncoderRunner::EncoderRunner(Model* model, EncoderCache* cache, TargetScores* scores, Clock clock)
    : model_(model), cache_(cache), scores_(scores), clock_(std::move(clock)) {
  batch_.Reserve(model->limits().max_encode_tokens);
  slots_.reserve(static_cast<size_t>(model->limits().max_encode_tokens));
  adapters_.reserve(static_cast<size_t>(model->limits().max_encode_tokens));
  rows_.reserve(static_cast<size_t>(model->limits().max_step_tokens));
  // PoolOnDevice first adds all segments of an input (at most kMaxPoolings), and then drops them if
  // the input has fewer rows than segments.
  segments_.reserve(static_cast<size_t>(model->limits().max_encode_tokens + kMaxPoolings));
}

void EncoderRunner::Reserve(size_t jobs) {
  EnsureCapacity(jobs, &inputs_);
  EnsureCapacity(jobs, &continuations_);
  while (projections_.size() + spare_.size() < jobs) spare_.emplace_back();
}

void EncoderRunner::Jobs(std::vector<Job*>* jobs) const {
  for (const Input& input : inputs_) {
    if (input.job != nullptr) jobs->push_back(input.job);
  }
  for (const Projection& projection : projections_) jobs->push_back(projection.job);
}

void EncoderRunner::AddProjection(Projection projection) {
  QT_CHECK(!spare_.empty());
  spare_.front() = std::move(projection);
  projections_.splice(projections_.end(), spare_, spare_.begin());
}

bool EncoderRunner::active() const {
  return !inputs_.empty() ||
         std::any_of(projections_.begin(), projections_.end(),
                     [](const Projection& p) { return p.encoded.owner == nullptr; });
}

std::optional<Priority> EncoderRunner::HighestPriority() const {
  std::optional<Priority> highest;
  const auto meet = [&highest](const Job* job) {
    if (job == nullptr) return;
    highest = std::max(highest.value_or(Priority::kLow), job->request.priority);
  };
  for (const Input& input : inputs_) meet(input.job);
  for (const Projection& projection : projections_) meet(projection.job);
  return highest;
}

void EncoderRunner::Begin(std::span<Job* const> jobs) {
  QT_CHECK(!active() && !jobs.empty());
  batch_.Clear();
  for (Job* job : jobs) {
    const int64_t begin = batch_.tokens();
    batch_.SetAdapter(job->adapter);
    if (job->scoring() != nullptr) {
      job->scoring()->AddTo(&batch_);
    } else {
      batch_.Add(job->request.input);
    }
    inputs_.push_back({job, begin, batch_.tokens()});
  }
  model_->BeginEncode(batch_.Finish());
}

void EncoderRunner::AddCached(Job* job, EncodedStates encoded) {
  AddProjection({job, std::move(encoded)});
}

void EncoderRunner::TakeContinuations(absl::FunctionRef<bool(Job* job)> take) {
  std::erase_if(continuations_, take);
}

void EncoderRunner::Remove(const Job* job) {
  std::erase(continuations_, job);
  std::erase_if(projections_, [job](const Projection& p) { return p.job == job; });
  bool wanted = false;
  for (Input& input : inputs_) {
    if (input.job == job) input.job = nullptr;
    wanted = wanted || input.job != nullptr;
  }
  if (!wanted) inputs_.clear();  // the next BeginEncode drops the running batch
}

void EncoderRunner::Advance(int64_t budget_us,
                            absl::FunctionRef<void(Job* job, const EncodedStates& states)> ready) {
  const int64_t begin_us = clock_();
  int64_t spent_us = 0;
  // The loop ends once more than half of the time budget is spent: a slice of work that fits into
  // the remaining time would be too small to be efficient.
  while (!(inputs_.empty() && projections_.empty()) && 2 * spent_us <= budget_us) {
    if (projections_.empty()) {
      Encode(budget_us - spent_us);
    } else {
      for (int64_t n = Project(budget_us - spent_us); n > 0; --n) {
        const Projection complete = std::move(projections_.front());
        spare_.splice(spare_.begin(), projections_, projections_.begin());
        ready(complete.job, complete.encoded);
      }
    }
    spent_us = clock_() - begin_us;
  }
}

void EncoderRunner::Encode(int64_t budget_us) {
  const int64_t work = encode_rate_.WorkFor(budget_us);
  const int64_t begin_us = clock_();
  if (!model_->EncodeSlice(work)) {
    encode_rate_.Record(work, clock_() - begin_us);  // not the last slice, which may be shorter
    return;
  }
  AddEncodedInputs();
  if (cache_->enabled() && model_->stream().Synchronize().ok()) {
    for (const Input& input : inputs_) {
      if (input.job == nullptr || input.job->scoring() != nullptr) continue;
      cache_->Insert(input.job->request.input, input.job->adapter_id(),
                     model_->HostEncoderStates().Rows(input.begin, input.end));
    }
  }
  inputs_.clear();
}

// Pools the hidden states of encode requests on the device: one kernel pools all inputs of the
// batch and writes only the results to host memory, to the place of the input's rows. An input that
// has fewer rows than results (one per pooling of its request) is therefore left to the host. If
// the encoder cache is on, which needs all rows on the host, all inputs are left to the host.
void EncoderRunner::PoolOnDevice() {
  if (cache_->enabled()) return;
  segments_.clear();
  for (Input& input : inputs_) {
    if (input.job == nullptr || input.job->request.kind != RequestKind::kEncode) continue;
    const size_t first = segments_.size(), rows = static_cast<size_t>(input.end - input.begin);
    ForEachPoolSegment(input.job->request, input.begin, static_cast<int64_t>(rows),
                       [this](const PoolSegment& segment) { segments_.push_back(segment); });
    if (segments_.size() - first > rows) segments_.resize(first);
    input.pooled_rows = static_cast<int64_t>(segments_.size() - first);
  }
  if (!segments_.empty() && model_->PoolEncoded(segments_)) return;
  for (Input& input : inputs_) input.pooled_rows = 0;
}

// Appends every encoded input whose job has not ended to projections_, the list of inputs whose
// follow-up work comes next, and enqueues the copies of their hidden states to the host. An event
// is recorded after each quarter of the batch, so that the host can pool the states of one quarter
// while the next one is copied.
void EncoderRunner::AddEncodedInputs() {
  constexpr int kFirstEvent = 2;  // the sampler uses events 0 and 1
  constexpr int64_t kParts = Device::kEvents - kFirstEvent;
  const Stream& stream = model_->stream();
  const int64_t part_rows = (batch_.tokens() + kParts - 1) / kParts;
  int event = kFirstEvent;
  PoolOnDevice();
  for (const Input& input : inputs_) {
    if (input.job != nullptr) {
      EncodedStates encoded{.states = model_->EncodedStates().Rows(input.begin, input.end)};
      if (input.job->scoring() == nullptr) {
        encoded.host = EnqueueDownload(input);
        encoded.pooled_rows = input.pooled_rows;
        encoded.downloaded = event;
      }
      AddProjection({input.job, std::move(encoded), input.begin});
    }
    if (input.end < (event - kFirstEvent + 1) * part_rows) continue;
    stream.RecordEvent(event);
    event = kFirstEvent + static_cast<int>(input.end / part_rows);
  }
  if (event < Device::kEvents) stream.RecordEvent(event);
}

// Enqueues the D2H copy of the rows that the host reads: all rows if the encoder cache is on (it
// stores a copy), otherwise those that the host pools for an encode request. Returns a host
// tensor [rows, d_model] of all rows of the input, in which only the copied rows are valid.
Tensor EncoderRunner::EnqueueDownload(const Input& input) const {
  const Request& request = input.job->request;
  const Tensor host = model_->HostEncoderStates().Rows(input.begin, input.end);
  RowRange rows{0, 0};
  if (request.kind == RequestKind::kEncode && input.pooled_rows == 0) {
    rows = PooledRows(request, host.dim[0]);
  }
  if (cache_->enabled()) rows = {0, host.dim[0]};
  const Tensor wanted = host.Rows(rows.begin, rows.end);
  model_->stream().CopyD2H(wanted.data, wanted.elements() * 4);
  return host;
}

int64_t EncoderRunner::Project(int64_t budget_us) {
  Projection& first = projections_.front();
  if (first.job->scoring() != nullptr) return ScoreSome(&first, budget_us) ? 1 : 0;
  if (first.job->task() == nullptr) return 1;  // never decodes, so no projection
  const int64_t begin = first.rows_done, rows = first.encoded.states.dim[0];
  const int64_t room = project_rate_.WorkFor(budget_us);
  const int64_t end = std::min(rows, begin + room);
  Tensor states = first.encoded.states.Rows(begin, end);
  slots_.assign(first.job->source_slots.begin() + begin, first.job->source_slots.begin() + end);
  adapters_.assign(static_cast<size_t>(end - begin), first.job->adapter);
  int64_t complete = end == rows ? 1 : 0;
  if (complete > 0) complete += AppendConsecutive(room, &states);
  const int64_t begin_us = clock_();
  model_->ProjectCross(states, begin, slots_, adapters_);
  project_rate_.Record(states.dim[0], clock_() - begin_us);
  first.rows_done = end;
  return complete;
}

// Lets one GEMM project several encoded inputs to cross-attention keys and values, because one
// large GEMM costs less than several small ones. projections_ lists the inputs to project. On entry
// `states` is a view of the rows of the first listed input that are not projected yet. This
// function extends the view by all rows of each next input, as long as these are adjacent in memory
// and the view has at most `room` rows. Returns the number of inputs by which the view was
// extended; 0 with rotary position encoding, because keys then depend on their position.
int64_t EncoderRunner::AppendConsecutive(int64_t room, Tensor* states) {
  if (model_->config().position == PositionEncoding::kRope) return 0;
  int64_t joined = 0;
  for (auto i = std::next(projections_.begin()); i != projections_.end(); ++i, ++joined) {
    const Projection& next = *i;
    const int64_t rows = next.encoded.states.dim[0];
    const bool follows =
        next.encoded.states.data == states->f32() + states->dim[0] * states->stride[0];
    if (next.encoded.owner != nullptr || !follows || next.job->task() == nullptr) break;
    if (states->dim[0] + rows > std::min(room, model_->limits().max_encode_tokens)) break;
    states->dim[0] += rows;
    slots_.insert(slots_.end(), next.job->source_slots.begin(), next.job->source_slots.end());
    adapters_.insert(adapters_.end(), static_cast<size_t>(rows), next.job->adapter);
  }
  return joined;
}

// Computes log-probabilities of target tokens of one scoring job, whose current part (PackedScoring
// splits long requests) has been encoded. Processes as many of the part's next target tokens as
// should fit `budget_us` microseconds at the measured rate. Returns true if the part is complete. A
// device failure is reported by the caller's next Synchronize.
bool EncoderRunner::ScoreSome(Projection* scoring, int64_t budget_us) {
  const Job& job = *scoring->job;
  const auto predictions = job.scoring()->predictions().subspan(scoring->rows_done);
  const int64_t room = std::min({score_rate_.WorkFor(budget_us), model_->limits().max_step_tokens,
                                 static_cast<int64_t>(predictions.size())});
  const int64_t begin_us = clock_();
  rows_.clear();
  for (const auto& prediction : predictions.first(room)) {
    rows_.push_back(static_cast<int32_t>(scoring->first_row) + prediction.row);
    scores_->Add(prediction.token, job.request.top_logprobs,
                 &scoring->job->result.targets[prediction.item], &scoring->job->out_of_memory);
  }
  scores_->Score(model_->EncodedRows(rows_)).IgnoreError();
  score_rate_.Record(room, clock_() - begin_us);
  scoring->rows_done += room;
  return room == static_cast<int64_t>(predictions.size());
}

}  // namespace quintet
