#include "engine/decoder.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <tuple>

#include "engine/scheduler.h"
#include "kernels/check.h"
#include "kernels/selection.h"

namespace quintet {
namespace {

constexpr int64_t kChunkRows = 64;    // at least the widest beam, 32
constexpr int64_t kMaxRanking = 544;  // candidates of 32 beams with 16 eos ids
constexpr int64_t kMaxAlternatives = 20;

// Bytes of each of the decoder's buffers, in the order in which Allocate names them.
std::array<int64_t, 15> BufferSizes(const ModelConfig& config, const ModelLimits& limits,
                                    const Stream& stream) {
  const int64_t steps = limits.max_step_tokens;
  const int64_t labels = std::max<int64_t>(1, config.labels);
  const int64_t logits = kChunkRows * config.vocab * 4, row = kChunkRows * 4;
  return {logits,
          logits,  // touched only when log-probabilities are asked for
          row,
          row,
          row,
          row * kMaxRanking,
          row * kMaxRanking,
          row * kMaxAlternatives,
          row * kMaxAlternatives,
          std::max<int64_t>(64, TopKScratchBytes(kChunkRows, config.vocab, kMaxRanking, stream)),
          steps * 4,
          steps * 4,
          steps * kMaxAlternatives * 4,
          steps * kMaxAlternatives * 4,
          steps * labels * 4};
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
      chunk_rows_(kChunkRows),
      batch_(model->limits()),
      warpers_(model->stream().pool().threads()) {}

int64_t Decoder::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  int64_t bytes = 0;
  for (const int64_t size : BufferSizes(config, limits, stream)) bytes += size;
  return bytes;
}

absl::Status Decoder::Allocate() {
  Buffer* const buffers[] = {&logits_,         &raw_,
                             &log_sums_,       &shifts_,
                             &biases_,         &ranked_,
                             &ranked_indices_, &top_,
                             &top_indices_,    &topk_scratch_,
                             &targets_,        &log_probs_,
                             &target_top_,     &target_top_tokens_,
                             &labels_};
  const auto sizes = BufferSizes(model_->config(), model_->limits(), model_->stream());
  static_assert(std::size(buffers) == std::tuple_size_v<decltype(sizes)>);
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(sizes[i]);
    if (!buffer.ok()) return buffer.status();
    *buffers[i] = *std::move(buffer);
  }
  for (auto* v : {&row_offsets_, &ks_}) v->reserve(chunk_rows_ + 1);
  processing_.reserve(chunk_rows_);
  processing_rows_.reserve(chunk_rows_);
  ranking_of_.reserve(chunk_rows_);
  return absl::OkStatus();
}

Tensor Decoder::Matrix(const Buffer& buffer, DType dtype, int64_t rows, int64_t columns) const {
  return Tensor::Dense(buffer.data(), dtype, {rows, columns});
}

Decoder::StepSize Decoder::Step(absl::Span<const DecoderJob> jobs, int64_t given_tokens) {
  Gather(jobs, given_tokens);
  if (batch_.empty()) return {};
  const Tensor states = model_->Decode(batch_.Finish());
  CollectStates(states, Score(states, SearchAll(states, 0)));
  for (const DecoderJob& job : jobs) {
    if (job.forced != nullptr) job.forced->Advance();
  }
  return {batch_.sequences(), std::accumulate(shares_.begin(), shares_.end(), int64_t{0})};
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
  const Tensor logits = Matrix(logits_, DType::kF32, chunk.rows, vocab_);
  model_->Logits(states, logits);
  const bool sums = std::any_of(chunk.generations.begin(), chunk.generations.end(),
                                [](const Generation* g) { return g->NeedsLogSums(); });
  if (sums) {
    const Tensor out = Tensor::Dense(log_sums_.data(), DType::kF32, {chunk.rows});
    LogSumExp({.logits = logits, .out = out}, model_->stream());
  }
  FindAlternatives(chunk);
  Process(chunk);
  Rank(chunk);
  Select(chunk);
}

void Decoder::FindAlternatives(const Chunk& chunk) {
  int64_t most = 0;
  row_offsets_.assign(1, 0);
  ks_.clear();
  for (const Generation* g : chunk.generations) {
    most = std::max(most, g->top_logprobs());
    for (int64_t row = 0; row < g->rows(); ++row) {
      row_offsets_.push_back(row_offsets_.back() + 1);
      ks_.push_back(static_cast<int32_t>(std::max<int64_t>(1, g->top_logprobs())));
    }
  }
  if (most == 0) return;
  TopKArgs args;
  args.scores = Matrix(logits_, DType::kF32, chunk.rows, vocab_);
  args.row_offsets = row_offsets_;
  args.k = ks_;
  args.values = Matrix(top_, DType::kF32, chunk.rows, kMaxAlternatives);
  args.indices = Matrix(top_indices_, DType::kI32, chunk.rows, kMaxAlternatives);
  args.scratch = Tensor::Dense(topk_scratch_.data(), DType::kI8, {topk_scratch_.bytes()});
  TopK(args, model_->stream());
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
      if (!g->Processes() && !g->LogitsAreLogProbs()) continue;
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
}

void Decoder::Rank(const Chunk& chunk) {
  float* shifts = shifts_.as<float>();
  float* biases = biases_.as<float>();
  row_offsets_.assign(1, 0);
  ks_.clear();
  ranking_of_.clear();
  int64_t first = 0;
  bool any = false, summed = false;
  for (const Generation* g : chunk.generations) {
    const int64_t rows = g->rows();
    const int32_t k = static_cast<int32_t>(std::max<int64_t>(1, g->RankingSize()));
    QT_CHECK_LE(k, kMaxRanking);
    any = any || g->RankingSize() > 0;
    summed = summed || g->RankedTogether();
    ranking_of_.push_back(static_cast<int64_t>(ks_.size()));
    const int64_t entries = g->RankedTogether() ? 1 : rows;
    for (int64_t entry = 0; entry < entries; ++entry) {
      row_offsets_.push_back(static_cast<int32_t>(row_offsets_.back() + rows / entries));
      ks_.push_back(k);
    }
    const bool shifted = g->RankedTogether() && !g->LogitsAreLogProbs();
    for (int64_t row = 0; row < rows; ++row, ++first) {
      shifts[first] = shifted ? log_sums_.as<float>()[first] : 0.0f;
      biases[first] = g->RowBias(row);
    }
  }
  if (!any) return;
  const int64_t entries = static_cast<int64_t>(ks_.size());
  TopKArgs args;
  args.scores = Matrix(logits_, DType::kF32, chunk.rows, vocab_);
  if (summed) {
    args.row_shift = Tensor::Dense(shifts_.data(), DType::kF32, {chunk.rows});
    args.row_bias = Tensor::Dense(biases_.data(), DType::kF32, {chunk.rows});
  }
  args.row_offsets = row_offsets_;
  args.k = ks_;
  const int64_t width = *std::max_element(ks_.begin(), ks_.end());
  args.values = Matrix(ranked_, DType::kF32, entries, width);
  args.indices = Matrix(ranked_indices_, DType::kI32, entries, width);
  args.scratch = Tensor::Dense(topk_scratch_.data(), DType::kI8, {topk_scratch_.bytes()});
  TopK(args, model_->stream());
}

void Decoder::Select(const Chunk& chunk) {
  const int64_t width = ks_.empty() ? 0 : *std::max_element(ks_.begin(), ks_.end());
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
  for (const DecoderJob* job : scoring_) {
    for (const auto& wanted : job->forced->wanted()) targets_.as<int32_t>()[rows++] = wanted.target;
    top = std::max<int64_t>(top, job->top_logprobs);
  }
  if (rows == 0) return row;
  top = std::min(top, vocab_);
  Tensor top_log_probs, top_tokens;
  if (top > 0) {
    top_log_probs = Matrix(target_top_, DType::kF32, rows, top);
    top_tokens = Matrix(target_top_tokens_, DType::kI32, rows, top);
  }
  model_->TargetLogProbs(
      states.Rows(row, row + rows), Tensor::Dense(targets_.data(), DType::kI32, {rows}),
      Tensor::Dense(log_probs_.data(), DType::kF32, {rows}), top_log_probs, top_tokens);
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

void Decoder::CollectStates(const Tensor& states, int64_t row) {
  for (const DecoderJob* job : stating_) {
    const int64_t count = static_cast<int64_t>(job->forced->wanted().size());
    if (count == 0) continue;
    Tensor values = states.Rows(row, row + count);
    if (job->classify) {
      const Tensor labels = Matrix(labels_, DType::kF32, count, model_->config().labels);
      model_->Classify(values, labels);
      values = labels;
    }
    Result& result = *job->result;
    for (int64_t i = 0; i < count; ++i) {
      const float* data = values.f32() + i * values.stride[0];
      result.values.insert(result.values.end(), data, data + values.dim[1]);
    }
    result.rows += count;
    result.columns = values.dim[1];
    row += count;
  }
}

}  // namespace quintet
