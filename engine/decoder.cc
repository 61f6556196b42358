#include "engine/decoder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "engine/logits_rows.h"
#include "engine/scheduler.h"
#include "kernels/check.h"
#include "kernels/selection.h"

namespace quintet {
namespace {

constexpr size_t kDecoderBuffers = 9;
constexpr int64_t kMaxRanking = 544;  // candidates of 32 beams with 16 eos ids
constexpr int64_t kMaxAlternatives = 20;

// Bytes of each of the decoder's buffers, in the order in which Allocate names them: those of ops,
// then the mirrored ones, then the host's.
std::array<int64_t, kDecoderBuffers> BufferSizes(const ModelConfig& config,
                                                 const ModelLimits& limits, const Stream& stream) {
  const int64_t steps = limits.max_step_tokens, rows = LogitsChunkRows(stream);
  const int64_t labels = std::max<int64_t>(1, config.labels);
  const int64_t logits = rows * LogitsStride(config.vocab) * 4, row = rows * 4;
  return {std::max<int64_t>(64, TopKScratchBytes(rows, config.vocab, kMaxRanking, stream)),
          steps * labels * 4,
          logits,
          row,
          2 * row * kMaxRanking,
          2 * row * kMaxRanking,
          row * kMaxAlternatives,
          row * kMaxAlternatives,
          logits};  // touched only when log-probabilities are asked for
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(Model* model, bool run_ahead) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(model, run_ahead));
  const absl::Status status = decoder->Allocate();
  if (!status.ok()) return status;
  return decoder;
}

Decoder::Decoder(Model* model, bool run_ahead)
    : model_(model),
      vocab_(model->config().vocab),
      logits_stride_(LogitsStride(vocab_)),
      chunk_rows_(LogitsChunkRows(model->stream())),
      runs_ahead_(run_ahead || model->stream().backend() != Backend::kCpu),
      batch_(model->limits()),
      warpers_(model->stream().pool().threads()),
      plan_(&model->stream()),
      alternatives_plan_(&model->stream()),
      target_scores_(model) {}

int64_t Decoder::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  int64_t bytes = 0;
  for (const int64_t size : BufferSizes(config, limits, stream)) bytes += size;
  return bytes + 2 * RankingPlan::BlockBytes(LogitsChunkRows(stream)) +
         TargetScores::BufferBytes(limits);
}

absl::Status Decoder::Allocate() {
  Buffer* const buffers[] = {&topk_scratch_,   &labels_, &logits_,      &log_sums_, &ranked_,
                             &ranked_indices_, &top_,    &top_indices_, &raw_};
  constexpr size_t kOfOps = 2, kMirrored = kDecoderBuffers - 1;  // where each kind ends
  static_assert(std::size(buffers) == kDecoderBuffers);
  const Stream& stream = model_->stream();
  const auto sizes = BufferSizes(model_->config(), model_->limits(), stream);
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StatusOr<Buffer> buffer = i < kOfOps      ? stream.Allocate(sizes[i])
                                    : i < kMirrored ? stream.AllocateMirrored(sizes[i])
                                                    : Buffer::Allocate(sizes[i]);
    if (!buffer.ok()) return buffer.status();
    *buffers[i] = *std::move(buffer);
  }
  for (RankingPlan* plan : {&plan_, &alternatives_plan_}) {
    if (absl::Status status = plan->Allocate(chunk_rows_); !status.ok()) return status;
  }
  if (absl::Status status = target_scores_.Allocate(); !status.ok()) return status;
  processing_.reserve(chunk_rows_);
  processing_rows_.reserve(chunk_rows_);
  ranking_of_.reserve(chunk_rows_);
  return absl::OkStatus();
}

Tensor Decoder::Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), dtype, {rows, columns}));
}

Tensor Decoder::Logits(int64_t rows) const {
  return Matrix(logits_, DType::kF32, rows, logits_stride_).Columns(0, vocab_);
}

Tensor Decoder::Vector(const Buffer& mirrored, int64_t rows) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), DType::kF32, {rows}));
}

absl::StatusOr<Decoder::StepSize> Decoder::Step(absl::Span<const DecoderJob> jobs,
                                                int64_t given_tokens, const Urgent& urgent) {
  urgent_ = urgent;
  if (ahead_.has_value() && TakesPart(jobs)) return FinishAhead(jobs);
  ahead_.reset();  // nobody waits for it
  Gather(jobs, given_tokens);
  if (batch_.empty()) return StepSize{};
  // A plan that needs nothing of this step's is on the device before the step begins.
  planned_ = false;
  if (FitsOneChunk()) {
    const Chunk chunk = ChunkFrom(0);
    needs_ = NeedsOf(chunk);
    if (!needs_.reads && needs_.alternatives == 0) PlanRanking(chunk);
  }
  const int64_t sequences = batch_.sequences();
  const Tensor states = model_->Decode(batch_.Finish());
  CollectStates(states, Score(states, SearchAll(states, 0, jobs)));
  if (!ahead_.has_value()) status_.Update(model_->stream().Synchronize());
  if (!status_.ok()) return status_;
  for (const DecoderJob& job : jobs) {
    if (job.forced != nullptr) job.forced->Advance();
  }
  return StepSize{sequences, std::accumulate(shares_.begin(), shares_.end(), int64_t{0})};
}

void Decoder::Gather(absl::Span<const DecoderJob> jobs, int64_t given_tokens) {
  classes_.clear();
  for (const DecoderJob& job : jobs) classes_.push_back(job.priority);
  members_.clear();
  const Priority lowest = turns_.Lowest(classes_, urgent_);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].priority >= lowest) members_.push_back(i);
  }
  turns_.Record(members_.size() < jobs.size());

  int64_t budget = model_->limits().max_step_tokens;
  left_.clear();
  for (const size_t i : members_) {
    const DecodeTask* task = jobs[i].generation != nullptr
                                 ? static_cast<DecodeTask*>(jobs[i].generation)
                                 : jobs[i].forced;
    budget -= task->generating_rows();
    left_.push_back(task->given_tokens_left());
  }
  QT_CHECK_GE(budget, 0);
  shares_.resize(left_.size());
  SharePrefill(std::min(budget, given_tokens), left_, absl::MakeSpan(shares_));
  AddMembers(jobs);
}

// Wanted rows in one piece for each use: search, scores, states.
void Decoder::AddMembers(absl::Span<const DecoderJob> jobs) {
  batch_.Clear();
  selecting_.clear();
  selecting_ids_.clear();
  scoring_.clear();
  stating_.clear();
  for (size_t m = 0; m < members_.size(); ++m) {
    const DecoderJob& job = jobs[members_[m]];
    if (job.generation == nullptr) continue;
    batch_.BeginGroup(job.id, job.source_slots);
    job.generation->AddTo(&batch_, shares_[m]);
    if (!job.generation->ReadyToSelect()) continue;
    selecting_.push_back(job.generation);
    selecting_ids_.push_back(job.id);
  }
  for (const bool scores : {true, false}) {
    for (size_t m = 0; m < members_.size(); ++m) {
      const DecoderJob& job = jobs[members_[m]];
      if (job.forced == nullptr || job.forced->scores() != scores) continue;
      batch_.BeginGroup(job.id, job.source_slots);
      job.forced->AddTo(&batch_, shares_[m]);
      (scores ? scoring_ : stating_).push_back(&job);
    }
  }
}

// As many generations as fit a chunk, from the `begin`-th selecting one on.
Decoder::Chunk Decoder::ChunkFrom(size_t begin) const {
  size_t end = begin;
  int64_t rows = 0;
  while (end < selecting_.size() && rows + selecting_[end]->rows() <= chunk_rows_) {
    rows += selecting_[end++]->rows();
  }
  return {absl::MakeConstSpan(selecting_).subspan(begin, end - begin), rows};
}

bool Decoder::FitsOneChunk() const {
  return !selecting_.empty() && ChunkFrom(0).generations.size() == selecting_.size();
}

int64_t Decoder::SearchAll(const Tensor& states, int64_t row, absl::Span<const DecoderJob> jobs) {
  for (size_t begin = 0; begin < selecting_.size();) {
    const Chunk chunk = ChunkFrom(begin);
    QT_CHECK(!chunk.generations.empty());
    Search(chunk, states.Rows(row, row + chunk.rows), jobs);
    row += chunk.rows;
    begin += chunk.generations.size();
  }
  return row;
}

Decoder::SearchNeeds Decoder::NeedsOf(const Chunk& chunk) const {
  SearchNeeds needs;
  for (const Generation* g : chunk.generations) {
    needs.ranks = needs.ranks || g->RankingSize() > 0;
    needs.changes = needs.changes || g->ChangesLogits();
    needs.reads = needs.reads || g->ReadsLogits();
    needs.sums = needs.sums || g->NeedsLogSums();
    needs.together = needs.together || g->RankedTogether();
    needs.logprobs = needs.logprobs || g->NeedsLogProbs();
    needs.alternatives = std::max(needs.alternatives, g->top_logprobs());
  }
  return needs;
}

void Decoder::Search(const Chunk& chunk, const Tensor& states, absl::Span<const DecoderJob> jobs) {
  Stream& stream = model_->stream();
  const Tensor logits = Logits(chunk.rows);
  model_->Logits(states, logits);
  needs_ = NeedsOf(chunk);
  if (needs_.sums && !SumsInRanking()) {
    LogSumExp({.logits = logits, .out = Vector(log_sums_, chunk.rows)}, stream);
    stream.Download(log_sums_.data(), chunk.rows * 4);
  }
  if (needs_.alternatives > 0) FindAlternatives(chunk);
  BringLogits(chunk);
  Process(chunk);
  if (!planned_) PlanRanking(chunk);
  planned_ = false;
  const int half = 0;
  if (needs_.ranks) Rank(chunk.rows, ranked_width_, half);
  stream.Mark(half);
  if (batch_.sequences() == chunk.rows && chunk.rows == static_cast<int64_t>(selecting_.size())) {
    QueueAhead(jobs, {selecting_ids_, half});
  }
  if (status_.Update(stream.WaitForMark(half)); !status_.ok()) return;
  Select(chunk, half);
}

void Decoder::FindAlternatives(const Chunk& chunk) {
  RankingPlan& plan = alternatives_plan_;
  plan.Begin();
  for (const Generation* g : chunk.generations) {
    for (int64_t row = 0; row < g->rows(); ++row) {
      plan.AddEntry(1, std::max<int64_t>(1, g->top_logprobs()), false);
    }
  }
  plan.Commit();
  TopKArgs args = plan.Args({});
  args.scores = Logits(chunk.rows);
  args.values = Matrix(top_, DType::kF32, chunk.rows, kMaxAlternatives);
  args.indices = Matrix(top_indices_, DType::kI32, chunk.rows, kMaxAlternatives);
  args.scratch = Tensor::Dense(topk_scratch_.data(), DType::kI8, {topk_scratch_.bytes()});
  TopK(args, model_->stream());
  model_->stream().Download(top_.data(), chunk.rows * kMaxAlternatives * 4);
  model_->stream().Download(top_indices_.data(), chunk.rows * kMaxAlternatives * 4);
}

// Logits that are read or changed on the host.
void Decoder::BringLogits(const Chunk& chunk) {
  Stream& stream = model_->stream();
  if (stream.backend() == Backend::kCpu) return;
  int64_t first = 0;
  bool any = false;
  for (const Generation* g : chunk.generations) {
    if (g->ReadsLogits()) {
      stream.Download(logits_.as<float>() + first * logits_stride_, g->rows() * logits_stride_ * 4);
      any = true;
    }
    first += g->rows();
  }
  if (any) status_.Update(stream.Synchronize());
}

void Decoder::Process(const Chunk& chunk) {
  float* logits = logits_.as<float>();
  processing_.clear();
  processing_rows_.clear();
  int64_t first = 0;
  for (Generation* g : chunk.generations) {
    const int64_t rows = g->rows();
    if (g->NeedsRawLogits()) {
      std::copy_n(logits + first * logits_stride_, rows * logits_stride_,
                  raw_.as<float>() + first * logits_stride_);
    }
    for (int64_t row = 0; row < rows; ++row) {
      if (!g->ChangesLogits()) continue;
      processing_.emplace_back(g, row);
      processing_rows_.push_back(first + row);
    }
    first += rows;
  }
  if (processing_.empty()) return;
  const float* sums = log_sums_.as<float>();
  model_->stream().pool().ParallelFor(
      static_cast<int64_t>(processing_.size()), [&](int64_t task, int) {
        const auto [generation, row] = processing_[task];
        const int64_t at = processing_rows_[task];
        const absl::Span<float> values(logits + at * logits_stride_, vocab_);
        if (generation->LogitsAreLogProbs()) {
          for (float& x : values) x -= sums[at];
        }
        if (generation->Processes()) generation->Process(row, values);
      });
  for (const int64_t row : processing_rows_) {
    model_->stream().Upload(logits + row * logits_stride_, vocab_ * 4);
  }
}

// What the chunk's ranking plans with, and its way to the device.
void Decoder::PlanRanking(const Chunk& chunk) {
  plan_.Begin();
  ranking_of_.clear();
  int64_t first = 0;
  ranked_width_ = 1;
  for (const Generation* g : chunk.generations) {
    const int64_t rows = g->rows();
    const int64_t k = std::max<int64_t>(1, g->RankingSize());
    QT_CHECK_LE(k, kMaxRanking);
    ranked_width_ = std::max(ranked_width_, k);
    ranking_of_.push_back(plan_.entries());
    const int64_t entries = g->RankedTogether() ? 1 : rows;
    const bool log_softmax = g->RankedTogether() && !g->LogitsAreLogProbs();
    for (int64_t entry = 0; entry < entries; ++entry)
      plan_.AddEntry(rows / entries, k, log_softmax);
    for (int64_t row = 0; row < rows; ++row, ++first) {
      const bool shifted = log_softmax && !SumsInRanking();
      plan_.AddRow(shifted ? log_sums_.as<float>()[first] : 0.0f, g->RowBias(row));
    }
  }
  if (needs_.ranks) plan_.Commit();
  planned_ = true;
}

// Ranks by the plan into one half of the results.
void Decoder::Rank(int64_t rows, int64_t width, int half) {
  Stream& stream = model_->stream();
  const bool in_ranking = SumsInRanking();
  TopKArgs args = plan_.Args({.biases = needs_.together,
                              .shifts = needs_.together && !in_ranking,
                              .log_softmax = in_ranking});
  const int64_t offset = half * chunk_rows_ * kMaxRanking;
  args.scores = Logits(rows);
  args.values = Tensor::F32(ranked_.as<float>() + offset, {plan_.entries(), width});
  args.indices =
      Tensor::Dense(ranked_indices_.as<int32_t>() + offset, DType::kI32, {plan_.entries(), width});
  args.scratch = Tensor::Dense(topk_scratch_.data(), DType::kI8, {topk_scratch_.bytes()});
  if (const Tensor chosen = model_->chosen(); chosen.elements() >= plan_.entries()) {
    args.best = chosen;
  }
  if (in_ranking) args.log_sums = Vector(log_sums_, rows);
  TopK(args, stream);
  if (in_ranking && needs_.logprobs) stream.Download(log_sums_.data(), rows * 4);
}

// ---- Steps ahead ----

// Which row of the step under way each job has; jobs keep their order from step to step.
void Decoder::FindEntries(absl::Span<const DecoderJob> jobs, absl::Span<const uint64_t> ids) {
  entries_.assign(jobs.size(), -1);
  auto next = ids.begin();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto found = std::find(next, ids.end(), jobs[i].id);
    if (found == ids.end()) continue;  // it rests, or is new
    entries_[i] = found - ids.begin();
    next = found + 1;
  }
}

// Gathers the step after the one under way. False: it cannot be queued yet, or has no sequence.
bool Decoder::AddAhead(absl::Span<const DecoderJob> jobs, const Ahead& under_way, Ahead* ahead) {
  if (!runs_ahead_ || !model_->chosen().defined()) return false;
  FindEntries(jobs, under_way.ids);
  members_.clear();  // first all that could take part
  classes_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (entries_[i] >= 0) {
      if (!jobs[i].generation->PlainGreedy()) return false;
      if (jobs[i].generation->EndsByLength()) continue;
    }
    members_.push_back(i);
    classes_.push_back(jobs[i].priority);
  }
  if (members_.empty()) return false;
  const Priority lowest = turns_.Lowest(classes_, urgent_);
  const size_t rested =
      std::erase_if(members_, [&](size_t i) { return jobs[i].priority < lowest; });
  if (members_.empty()) return false;
  for (const size_t i : members_) {
    const Generation* generation = jobs[i].generation;
    if (generation == nullptr) return false;
    if (!(entries_[i] >= 0 ? generation->CanRunAhead() : generation->CanResume())) return false;
  }
  batch_.Clear();
  for (const size_t i : members_) {
    batch_.BeginGroup(jobs[i].id, jobs[i].source_slots);
    if (entries_[i] >= 0) {
      jobs[i].generation->AddAhead(&batch_, -1 - static_cast<int32_t>(entries_[i]));
    } else {
      jobs[i].generation->AddTo(&batch_, 0);
    }
    ahead->ids.push_back(jobs[i].id);
  }
  turns_.Record(rested > 0);
  return true;
}

void Decoder::QueueAhead(absl::Span<const DecoderJob> jobs, const Ahead& under_way) {
  Ahead ahead{.half = 1 - under_way.half};
  if (!AddAhead(jobs, under_way, &ahead)) return;
  const int64_t rows = batch_.sequences();
  plan_.Begin();
  for (int64_t row = 0; row < rows; ++row) {
    plan_.AddEntry(1, 1, false);
    plan_.AddRow(0.0f, 0.0f);
  }
  plan_.Commit();
  const Tensor states = model_->Decode(batch_.Finish());
  model_->Logits(states, Logits(rows));
  needs_ = {.ranks = true};
  Rank(rows, 1, ahead.half);
  model_->stream().Mark(ahead.half);
  ahead_ = std::move(ahead);
}

// Whether some job is in the step queued ahead.
bool Decoder::TakesPart(absl::Span<const DecoderJob> jobs) const {
  return std::any_of(jobs.begin(), jobs.end(), [this](const DecoderJob& job) {
    return std::find(ahead_->ids.begin(), ahead_->ids.end(), job.id) != ahead_->ids.end();
  });
}

// Takes the results of the step queued ahead, with the one after it under way where possible.
absl::StatusOr<Decoder::StepSize> Decoder::FinishAhead(absl::Span<const DecoderJob> jobs) {
  const Ahead done = *std::move(ahead_);
  ahead_.reset();
  QueueAhead(jobs, done);
  if (status_.Update(model_->stream().WaitForMark(done.half)); !status_.ok()) return status_;
  selecting_.clear();
  ranking_of_.clear();
  ranked_width_ = 1;
  FindEntries(jobs, done.ids);  // others have ended since
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (entries_[i] < 0) continue;
    selecting_.push_back(jobs[i].generation);
    ranking_of_.push_back(entries_[i]);
  }
  Select({selecting_, static_cast<int64_t>(selecting_.size())}, done.half);
  return StepSize{static_cast<int64_t>(done.ids.size()), 0};
}

void Decoder::Select(const Chunk& chunk, int half) {
  const int64_t width = ranked_width_, offset = half * chunk_rows_ * kMaxRanking;
  std::vector<int64_t>& firsts = left_;  // free until the next step gathers
  firsts.clear();
  int64_t first = 0;
  for (const Generation* g : chunk.generations) {
    firsts.push_back(first);
    first += g->rows();
  }
  const auto select = [&](int64_t task, int thread) {
    Generation* g = chunk.generations[task];
    const int64_t row = firsts[task];
    RowResults results;
    results.logits = logits_.as<float>() + row * logits_stride_;
    results.logits_stride = logits_stride_;
    results.log_sums = log_sums_.as<float>() + row;
    if (g->NeedsRawLogits()) results.raw = raw_.as<float>() + row * logits_stride_;
    results.ranked = ranked_.as<float>() + offset + ranking_of_[task] * width;
    results.ranked_indices = ranked_indices_.as<int32_t>() + offset + ranking_of_[task] * width;
    results.ranked_stride = width;
    results.top = top_.as<float>() + row * kMaxAlternatives;
    results.top_indices = top_indices_.as<int32_t>() + row * kMaxAlternatives;
    results.top_stride = kMaxAlternatives;
    g->Select(results, &warpers_[thread]);
  };
  model_->stream().pool().ParallelFor(static_cast<int64_t>(chunk.generations.size()), select);
}

int64_t Decoder::Score(const Tensor& states, int64_t row) {
  for (const DecoderJob* job : scoring_) {
    for (const auto& wanted : job->forced->wanted()) {
      target_scores_.Add(wanted.target, job->top_logprobs, &job->result->targets[wanted.item]);
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
    const int64_t count = static_cast<int64_t>(job->forced->wanted().size());
    if (count == 0) continue;
    Result& result = *job->result;
    Classify(states.Rows(row, row + count), &result.values);
    result.rows += count;
    result.columns = model_->config().labels;
    row += count;
  }
}

}  // namespace quintet
