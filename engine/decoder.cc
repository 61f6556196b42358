#include "engine/decoder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include "engine/scheduler.h"
#include "kernels/check.h"
#include "kernels/selection.h"

namespace quintet {
namespace {

constexpr size_t kDecoderBuffers = 18;
constexpr int64_t kMaxRanking = 544;  // candidates of 32 beams with 16 eos ids
constexpr int64_t kMaxAlternatives = 20;

// Rows of logits searched together: at least the widest beam, 32.
int64_t ChunkRows(const Stream& stream) { return stream.backend() == Backend::kCpu ? 64 : 256; }

// Bytes of each of the decoder's buffers, in the order in which Allocate names them: those of ops,
// then the mirrored ones, then the host's.
std::array<int64_t, kDecoderBuffers> BufferSizes(const ModelConfig& config,
                                                 const ModelLimits& limits, const Stream& stream) {
  const int64_t steps = limits.max_step_tokens, rows = ChunkRows(stream);
  const int64_t labels = std::max<int64_t>(1, config.labels);
  const int64_t logits = rows * config.vocab * 4, row = rows * 4;
  return {std::max<int64_t>(64, TopKScratchBytes(rows, config.vocab, kMaxRanking, stream)),
          steps * labels * 4,
          logits,
          row,
          row,
          row,
          row * kMaxRanking,
          row * kMaxRanking,
          row * kMaxAlternatives,
          row * kMaxAlternatives,
          row + 4,
          row,
          row,
          steps * 4,
          steps * 4,
          steps * kMaxAlternatives * 4,
          steps * kMaxAlternatives * 4,
          logits};  // touched only when log-probabilities are asked for
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(Model* model) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(model));
  const absl::Status status = decoder->Allocate();
  if (!status.ok()) return status;
  return decoder;
}

Decoder::Decoder(Model* model)
    : model_(model),
      vocab_(model->config().vocab),
      chunk_rows_(ChunkRows(model->stream())),
      batch_(model->limits()),
      warpers_(model->stream().pool().threads()) {}

int64_t Decoder::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  int64_t bytes = 0;
  for (const int64_t size : BufferSizes(config, limits, stream)) bytes += size;
  return bytes;
}

absl::Status Decoder::Allocate() {
  Buffer* const buffers[] = {&topk_scratch_,
                             &labels_,
                             &logits_,
                             &log_sums_,
                             &shifts_,
                             &biases_,
                             &ranked_,
                             &ranked_indices_,
                             &top_,
                             &top_indices_,
                             &row_offsets_,
                             &ks_,
                             &log_softmax_,
                             &targets_,
                             &log_probs_,
                             &target_top_,
                             &target_top_tokens_,
                             &raw_};
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
  processing_.reserve(chunk_rows_);
  processing_rows_.reserve(chunk_rows_);
  ranking_of_.reserve(chunk_rows_);
  return absl::OkStatus();
}

Tensor Decoder::Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), dtype, {rows, columns}));
}

Tensor Decoder::Vector(const Buffer& mirrored, int64_t rows) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), DType::kF32, {rows}));
}

absl::StatusOr<Decoder::StepSize> Decoder::Step(absl::Span<const DecoderJob> jobs,
                                                int64_t given_tokens) {
  Gather(jobs, given_tokens);
  if (batch_.empty()) return StepSize{};
  const Tensor states = model_->Decode(batch_.Finish());
  CollectStates(states, Score(states, SearchAll(states, 0)));
  status_.Update(model_->stream().Synchronize());
  if (!status_.ok()) return status_;
  for (const DecoderJob& job : jobs) {
    if (job.forced != nullptr) job.forced->Advance();
  }
  return StepSize{batch_.sequences(),
                  std::accumulate(shares_.begin(), shares_.end(), int64_t{0})};
}

void Decoder::Gather(absl::Span<const DecoderJob> jobs, int64_t given_tokens) {
  int64_t budget = model_->limits().max_step_tokens;
  left_.clear();
  for (const DecoderJob& job : jobs) {
    const DecodeTask* task =
        job.generation != nullptr ? static_cast<DecodeTask*>(job.generation) : job.forced;
    budget -= task->generating_rows();
    left_.push_back(task->given_tokens_left());
  }
  QT_CHECK_GE(budget, 0);
  shares_.resize(left_.size());
  SharePrefill(std::min(budget, given_tokens), left_, absl::MakeSpan(shares_));

  // Wanted rows in one piece for each use: search, scores, states.
  batch_.Clear();
  selecting_.clear();
  scoring_.clear();
  stating_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].generation == nullptr) continue;
    batch_.BeginGroup(jobs[i].id, jobs[i].source_slots);
    jobs[i].generation->AddTo(&batch_, shares_[i]);
    if (jobs[i].generation->ReadyToSelect()) selecting_.push_back(jobs[i].generation);
  }
  for (const bool scores : {true, false}) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].forced == nullptr || jobs[i].forced->scores() != scores) continue;
      batch_.BeginGroup(jobs[i].id, jobs[i].source_slots);
      jobs[i].forced->AddTo(&batch_, shares_[i]);
      (scores ? scoring_ : stating_).push_back(&jobs[i]);
    }
  }
}

int64_t Decoder::SearchAll(const Tensor& states, int64_t row) {
  for (size_t begin = 0; begin < selecting_.size();) {
    size_t end = begin;
    int64_t rows = 0;
    while (end < selecting_.size() && rows + selecting_[end]->rows() <= chunk_rows_) {
      rows += selecting_[end++]->rows();
    }
    QT_CHECK_GT(end, begin);
    const Chunk chunk{absl::MakeConstSpan(selecting_).subspan(begin, end - begin), rows};
    Search(chunk, states.Rows(row, row + rows));
    row += rows;
    begin = end;
  }
  return row;
}

void Decoder::Search(const Chunk& chunk, const Tensor& states) {
  Stream& stream = model_->stream();
  const Tensor logits = Matrix(logits_, DType::kF32, chunk.rows, vocab_);
  model_->Logits(states, logits);
  bool ranks = false, changes = false;
  int64_t alternatives = 0;
  needs_sums_ = false;
  for (const Generation* g : chunk.generations) {
    needs_sums_ = needs_sums_ || g->NeedsLogSums();
    ranks = ranks || g->RankingSize() > 0;
    changes = changes || g->ChangesLogits();
    alternatives = std::max(alternatives, g->top_logprobs());
  }
  // Logits that stay as they are get their sums in the same reading as their ranking.
  sums_in_ranking_ = needs_sums_ && ranks && !changes;
  if (needs_sums_ && !sums_in_ranking_) {
    LogSumExp({.logits = logits, .out = Vector(log_sums_, chunk.rows)}, stream);
    stream.Download(log_sums_.data(), chunk.rows * 4);
  }
  if (alternatives > 0) FindAlternatives(chunk);
  BringLogits(chunk);
  Process(chunk);
  Rank(chunk);
  if (status_.Update(stream.Synchronize()); !status_.ok()) return;
  Select(chunk);
}

// Room for the bounds of `entries` requests of a ranking, and their widths.
void Decoder::BeginRanking() {
  model_->stream().WaitForUploads();
  entries_ = 0;
  row_offsets_.as<int32_t>()[0] = 0;
}

void Decoder::AddEntry(int64_t rows, int64_t k, bool log_softmax) {
  QT_CHECK_LE(k, kMaxRanking);
  int32_t* offsets = row_offsets_.as<int32_t>();
  offsets[entries_ + 1] = offsets[entries_] + static_cast<int32_t>(rows);
  log_softmax_.as<int32_t>()[entries_] = log_softmax ? 1 : 0;
  ks_.as<int32_t>()[entries_++] = static_cast<int32_t>(k);
}

// The ranking of the entries added, `width` columns wide.
TopKArgs Decoder::FinishRanking(int64_t rows) const {
  const Stream& stream = model_->stream();
  stream.Upload(row_offsets_.data(), (entries_ + 1) * 4);
  stream.Upload(ks_.data(), entries_ * 4);
  TopKArgs args;
  args.scores = Matrix(logits_, DType::kF32, rows, vocab_);
  args.row_offsets = {row_offsets_.as<int32_t>(), static_cast<size_t>(entries_ + 1)};
  args.k = {ks_.as<int32_t>(), static_cast<size_t>(entries_)};
  args.scratch = Tensor::Dense(topk_scratch_.data(), DType::kI8, {topk_scratch_.bytes()});
  return args;
}

void Decoder::FindAlternatives(const Chunk& chunk) {
  BeginRanking();
  for (const Generation* g : chunk.generations) {
    for (int64_t row = 0; row < g->rows(); ++row) {
      AddEntry(1, std::max<int64_t>(1, g->top_logprobs()), false);
    }
  }
  TopKArgs args = FinishRanking(chunk.rows);
  args.values = Matrix(top_, DType::kF32, chunk.rows, kMaxAlternatives);
  args.indices = Matrix(top_indices_, DType::kI32, chunk.rows, kMaxAlternatives);
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
      stream.Download(logits_.as<float>() + first * vocab_, g->rows() * vocab_ * 4);
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
      std::copy_n(logits + first * vocab_, rows * vocab_, raw_.as<float>() + first * vocab_);
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
        const absl::Span<float> values(logits + at * vocab_, vocab_);
        if (generation->LogitsAreLogProbs()) {
          for (float& x : values) x -= sums[at];
        }
        if (generation->Processes()) generation->Process(row, values);
      });
  for (const int64_t row : processing_rows_) {
    model_->stream().Upload(logits + row * vocab_, vocab_ * 4);
  }
}

void Decoder::Rank(const Chunk& chunk) {
  Stream& stream = model_->stream();
  BeginRanking();
  float* shifts = shifts_.as<float>();
  float* biases = biases_.as<float>();
  ranking_of_.clear();
  int64_t first = 0;
  bool any = false, summed = false;
  ranked_width_ = 1;
  for (const Generation* g : chunk.generations) {
    const int64_t rows = g->rows();
    const int64_t k = std::max<int64_t>(1, g->RankingSize());
    any = any || g->RankingSize() > 0;
    summed = summed || g->RankedTogether();
    ranked_width_ = std::max(ranked_width_, k);
    ranking_of_.push_back(entries_);
    const int64_t entries = g->RankedTogether() ? 1 : rows;
    const bool log_softmax = g->RankedTogether() && !g->LogitsAreLogProbs();
    for (int64_t entry = 0; entry < entries; ++entry) AddEntry(rows / entries, k, log_softmax);
    for (int64_t row = 0; row < rows; ++row, ++first) {
      shifts[first] = log_softmax && !sums_in_ranking_ ? log_sums_.as<float>()[first] : 0.0f;
      biases[first] = g->RowBias(row);
    }
  }
  if (!any) return;
  TopKArgs args = FinishRanking(chunk.rows);
  args.values = Matrix(ranked_, DType::kF32, entries_, ranked_width_);
  args.indices = Matrix(ranked_indices_, DType::kI32, entries_, ranked_width_);
  if (summed) {
    stream.Upload(biases_.data(), chunk.rows * 4);
    args.row_bias = Vector(biases_, chunk.rows);
  }
  if (sums_in_ranking_) {
    stream.Upload(log_softmax_.data(), entries_ * 4);
    args.log_sums = Vector(log_sums_, chunk.rows);
    args.log_softmax = {log_softmax_.as<int32_t>(), static_cast<size_t>(entries_)};
  } else if (summed) {
    stream.Upload(shifts_.data(), chunk.rows * 4);
    args.row_shift = Vector(shifts_, chunk.rows);
  }
  TopK(args, stream);
  if (sums_in_ranking_) stream.Download(log_sums_.data(), chunk.rows * 4);
  stream.Download(ranked_.data(), entries_ * ranked_width_ * 4);
  stream.Download(ranked_indices_.data(), entries_ * ranked_width_ * 4);
}

void Decoder::Select(const Chunk& chunk) {
  const int64_t width = ranked_width_;
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
    results.logits = {logits_.as<float>() + row * vocab_, static_cast<size_t>(g->rows() * vocab_)};
    results.log_sums = log_sums_.as<float>() + row;
    if (g->NeedsRawLogits()) results.raw = raw_.as<float>() + row * vocab_;
    results.ranked = ranked_.as<float>() + ranking_of_[task] * width;
    results.ranked_indices = ranked_indices_.as<int32_t>() + ranking_of_[task] * width;
    results.ranked_stride = width;
    results.top = top_.as<float>() + row * kMaxAlternatives;
    results.top_indices = top_indices_.as<int32_t>() + row * kMaxAlternatives;
    results.top_stride = kMaxAlternatives;
    g->Select(results, &warpers_[thread]);
  };
  model_->stream().pool().ParallelFor(static_cast<int64_t>(chunk.generations.size()), select);
}

int64_t Decoder::Score(const Tensor& states, int64_t row) {
  int64_t rows = 0, top = 0;
  if (!scoring_.empty()) model_->stream().WaitForUploads();
  for (const DecoderJob* job : scoring_) {
    for (const auto& wanted : job->forced->wanted()) targets_.as<int32_t>()[rows++] = wanted.target;
    top = std::max<int64_t>(top, job->top_logprobs);
  }
  if (rows == 0) return row;
  top = std::min(top, vocab_);
  Stream& stream = model_->stream();
  stream.Upload(targets_.data(), rows * 4);
  Tensor top_log_probs, top_tokens;
  if (top > 0) {
    top_log_probs = Matrix(target_top_, DType::kF32, rows, top);
    top_tokens = Matrix(target_top_tokens_, DType::kI32, rows, top);
  }
  model_->TargetLogProbs(states.Rows(row, row + rows),
                         Tensor::Dense(targets_.data(), DType::kI32, {rows}),
                         Vector(log_probs_, rows), top_log_probs, top_tokens);
  stream.Download(log_probs_.data(), rows * 4);
  stream.Download(target_top_.data(), rows * top * 4);
  stream.Download(target_top_tokens_.data(), rows * top * 4);
  if (status_.Update(stream.Synchronize()); !status_.ok()) return row + rows;
  RecordScores(top);
  return row + rows;
}

void Decoder::RecordScores(int64_t top) {
  int64_t row = 0;
  for (const DecoderJob* job : scoring_) {
    const int64_t shown = std::min<int64_t>(job->top_logprobs, top);
    for (const auto& wanted : job->forced->wanted()) {
      TokenLogProb scored{wanted.target, log_probs_.as<float>()[row], {}};
      for (int64_t i = 0; i < shown; ++i) {
        scored.alternatives.emplace_back(target_top_tokens_.as<int32_t>()[row * top + i],
                                         target_top_.as<float>()[row * top + i]);
      }
      ScoredTarget& target = job->result->targets[wanted.item];
      target.total += scored.log_prob;
      target.tokens.push_back(std::move(scored));
      ++row;
    }
  }
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
    const Tensor values = states.Rows(row, row + count);
    Result& result = *job->result;
    if (job->classify) {
      Classify(values, &result.values);
    } else {
      AppendRows(values, &result.values);
    }
    result.rows += count;
    result.columns = job->classify ? model_->config().labels : values.dim[1];
    row += count;
  }
}

}  // namespace quintet
