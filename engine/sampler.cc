#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>

#include "engine/logits_rows.h"
#include "kernels/candidate_logits.h"
#include "kernels/check.h"

namespace quintet {
namespace {

constexpr int64_t kMaxTopK = 544;  // candidates of 32 beams with 16 eos ids
constexpr int64_t kMaxAlternatives = 20;
// Tokens that the rules of one batch are about: several times what one request may name.
constexpr int64_t kRuleTokens = 1 << 16;
constexpr int64_t kMaxEosTokens = 16;  // of a request
constexpr size_t kBuffers = 16;
constexpr size_t kOfOps = 8;  // where these end

// Bytes of each buffer, in the order in which Allocate names them: those of ops, then the mirrored
// ones.
std::array<int64_t, kBuffers> BufferSizes(const ModelConfig& config, const Stream& stream) {
  const int64_t rows = LogitsChunkRows(stream), vocab = config.vocab, row = rows * 4;
  const int64_t logits = rows * LogitsStride(vocab) * 4;
  return {std::max<int64_t>(64, TopKScratchBytes(rows, vocab, kMaxTopK, stream)),
          std::max<int64_t>(64, LogitRulesScratchBytes(vocab, stream)),
          std::max<int64_t>({64, SampleScratchBytes(vocab, stream),
                             SampleBeamsScratchBytes(rows, vocab, kMaxTopK, stream)}),
          row,
          logits,
          logits,  // on a CPU touched only when log-probabilities are asked for
          row,
          row,
          row,
          2 * row * kMaxTopK,
          2 * row * kMaxTopK,
          2 * row,
          row * kMaxTopK,
          row,
          row * kMaxAlternatives,
          row * kMaxAlternatives};
}

// Rows or draws of a generation, of which a batch has room for so many.
int64_t MaxRows(const Generation& generation) {
  return std::max(generation.rows(), static_cast<int64_t>(generation.live_sequences().size()));
}

int64_t NextId() {
  static std::atomic<int64_t> next{0};
  return next++;
}

}  // namespace

Sampler::Sampler(Model* model, bool async_scheduling)
    : model_(model),
      id_(NextId()),
      vocab_(model->config().vocab),
      logits_stride_(LogitsStride(vocab_)),
      max_rows_(LogitsChunkRows(model->stream())),
      async_scheduling_(async_scheduling && model->chosen().defined() &&
                        model->parents().defined()),
      top_k_plan_(&model->stream()),
      logprobs_plan_(&model->stream()),
      rules_(&model->stream()),
      rule_tokens_(&model->stream()),
      draws_(&model->stream()),
      beam_draws_(&model->stream()),
      beam_groups_(&model->stream()),
      eos_tokens_(&model->stream()),
      carried_rows_(&model->stream()),
      entry_rows_(&model->stream()),
      entry_use_raw_(&model->stream()),
      draw_rows_(&model->stream()),
      draw_use_raw_(&model->stream()) {}

int64_t Sampler::BufferBytes(const ModelConfig& config, const Stream& stream) {
  const int64_t rows = LogitsChunkRows(stream);
  int64_t bytes = 2 * TopKPlan::BlockBytes(rows) + kRuleTokens * 4;
  bytes += rows * static_cast<int64_t>(sizeof(RowRules) + sizeof(Draw) + sizeof(BeamDraw) +
                                       sizeof(BeamGroup) + (5 + kMaxEosTokens) * sizeof(int32_t));
  for (const int64_t size : BufferSizes(config, stream)) bytes += size;
  return bytes;
}

absl::Status Sampler::Allocate() {
  Buffer* const buffers[] = {
      &topk_scratch_,     &rules_scratch_,    &sample_scratch_,    &top_k_log_sums_,
      &logits_,           &raw_logits_,       &beam_scores_,       &row_biases_,
      &log_sums_,         &candidate_scores_, &candidate_indices_, &sampled_tokens_,
      &candidate_logits_, &sampled_logits_,   &top_logits_,        &top_tokens_};
  static_assert(std::size(buffers) == kBuffers);
  const Stream& stream = model_->stream();
  const auto sizes = BufferSizes(model_->config(), stream);
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StatusOr<Buffer> buffer =
        i < kOfOps ? stream.Allocate(sizes[i]) : stream.AllocateMirrored(sizes[i]);
    if (!buffer.ok()) return buffer.status();
    *buffers[i] = *std::move(buffer);
  }
  absl::Status status;
  for (TopKPlan* plan : {&top_k_plan_, &logprobs_plan_}) status.Update(plan->Allocate(max_rows_));
  status.Update(rules_.Allocate(max_rows_));
  status.Update(rule_tokens_.Allocate(kRuleTokens));
  status.Update(draws_.Allocate(max_rows_));
  status.Update(beam_draws_.Allocate(max_rows_));
  status.Update(beam_groups_.Allocate(max_rows_));
  status.Update(eos_tokens_.Allocate(max_rows_ * kMaxEosTokens));
  for (auto* rows : {&entry_rows_, &entry_use_raw_, &draw_rows_, &draw_use_raw_, &carried_rows_}) {
    status.Update(rows->Allocate(max_rows_));
  }
  for (SamplingBatch& batch : batches_) {
    batch.slices.reserve(max_rows_);
    batch.sequences.reserve(std::max(max_rows_, model_->limits().max_step_sequences));
  }
  return status;
}

Tensor Sampler::Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), dtype, {rows, columns}));
}

Tensor Sampler::Logits(int64_t rows) const {
  return Tensor::F32(logits_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor Sampler::RawLogits(int64_t rows) const {
  return Tensor::F32(raw_logits_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor Sampler::LogSums(int64_t rows) const {
  return model_->stream().Twin(Tensor::F32(log_sums_.as<float>(), {rows}));
}

Tensor Sampler::Scratch(const Buffer& buffer) const {
  return Tensor::Dense(buffer.data(), DType::kI8, {buffer.bytes()});
}

Tensor Sampler::CandidateScores(const SamplingBatch& batch, int which) const {
  return Tensor::F32(candidate_scores_.as<float>() + CandidateOffset(which),
                     {top_k_plan_.entries(), batch.needs.max_k});
}

Tensor Sampler::CandidateIndices(const SamplingBatch& batch, int which) const {
  return Tensor::Dense(candidate_indices_.as<int32_t>() + CandidateOffset(which), DType::kI32,
                       {top_k_plan_.entries(), batch.needs.max_k});
}

Tensor Sampler::RowBias(const Needs& needs) const {
  return needs.carries_scores ? Tensor::F32(row_biases_.as<float>(), {max_rows_})
                              : top_k_plan_.Args({.biases = true}).row_bias;
}

// The first entry of a batch in the results that there are twice.
int64_t Sampler::CandidateOffset(int which) const { return which * max_rows_ * kMaxTopK; }

absl::Span<const int32_t> Sampler::SequencesOf(const SamplingSlice& slice, int which) const {
  return absl::MakeConstSpan(batches_[which].sequences)
      .subspan(slice.sequences_begin, slice.sequences_end - slice.sequences_begin);
}

// ---- The plan ----

size_t Sampler::CountFitting(absl::Span<const SamplingInput> inputs) const {
  int64_t rows = 0, tokens = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Generation& generation = *inputs[i].generation;
    rows += MaxRows(generation);
    tokens += static_cast<int64_t>(generation.rule_tokens().size());
    if (rows <= max_rows_ && tokens <= kRuleTokens) continue;
    QT_CHECK(i > 0);
    return i;
  }
  return inputs.size();
}

void Sampler::Plan(absl::Span<const SamplingInput> inputs, int which) {
  SamplingBatch& batch = batches_[which];
  batch.slices.clear();
  batch.sequences.clear();
  batch.rows = 0;
  batch.needs = {};
  batch.one_sequence_per_row = true;
  batch.beams = false;
  top_k_plan_.Begin();
  rules_.Clear();
  rule_tokens_.Clear();
  draws_.Clear();
  beam_draws_.Clear();
  beam_groups_.Clear();
  for (auto* rows :
       {&entry_rows_, &entry_use_raw_, &draw_rows_, &draw_use_raw_, &eos_tokens_, &carried_rows_}) {
    rows->Clear();
  }
  for (const SamplingInput& one : inputs) PlanGeneration(one, &batch);
  batch.token_per_row = batch.one_sequence_per_row && !batch.beams;
  batch.advances_beams =
      async_scheduling_ && batch.one_sequence_per_row && batch.beams && !batch.needs.logprobs;
  // Raw logits are looked up for all entries: all must have some index.
  if (batch.needs.logprobs && beam_draws_.size() > 0) batch.needs.top_k = true;
  if (batch.needs.top_k || batch.beams) top_k_plan_.Commit();
  rules_.Commit();
  rule_tokens_.Commit();
  draws_.Commit();
  beam_draws_.Commit();
  if (batch.needs.carries_scores) carried_rows_.Commit();
  if (batch.advances_beams) {
    beam_groups_.Commit();
    eos_tokens_.Commit();
  }
  if (!batch.needs.logprobs) return;
  for (auto* rows : {&entry_rows_, &entry_use_raw_, &draw_rows_, &draw_use_raw_}) rows->Commit();
}

void Sampler::PlanGeneration(const SamplingInput& input, SamplingBatch* batch) {
  const Generation& generation = *input.generation;
  Needs& needs = batch->needs;
  const absl::Span<const int32_t> sequences = generation.live_sequences();
  const int64_t rows = input.in_flight ? static_cast<int64_t>(sequences.size()) : generation.rows();
  SamplingSlice slice{.id = input.id,
                      .row = static_cast<int32_t>(batch->rows),
                      .entry = static_cast<int32_t>(top_k_plan_.entries()),
                      .draw = static_cast<int32_t>(draws_.size()),
                      .sequences_begin = static_cast<int32_t>(batch->sequences.size())};
  needs.logprobs = needs.logprobs || generation.wants_logprobs();
  needs.top_logprobs = std::max(needs.top_logprobs, generation.top_logprobs());
  batch->beams = batch->beams || generation.RanksBeamsTogether();
  batch->one_sequence_per_row =
      batch->one_sequence_per_row && rows == static_cast<int64_t>(sequences.size());
  const int64_t length = generation.length() + (input.in_flight ? 1 : 0);
  const bool ruled = generation.HasRules(length);
  if (ruled) PlanRules(input, rows, batch->rows, &needs);
  PlanTopK(input, rows, &needs);
  if (async_scheduling_) PlanBeamGroups(generation, rows, slice);
  if (generation.SamplesTokens()) PlanDraws(input, sequences, &slice);
  if (generation.SamplesBeams()) PlanBeamDraw(input, rows, slice);
  const int32_t kept = ruled ? 1 : 0;
  for (int64_t entry = slice.entry; entry < top_k_plan_.entries(); ++entry) {
    entry_rows_.Add(slice.row + static_cast<int32_t>(entry - slice.entry));
    entry_use_raw_.Add(kept);
  }
  for (int64_t draw = slice.draw; draw < draws_.size(); ++draw) draw_use_raw_.Add(kept);
  batch->sequences.insert(batch->sequences.end(), sequences.begin(), sequences.end());
  slice.sequences_end = static_cast<int32_t>(batch->sequences.size());
  batch->rows += rows;
  batch->slices.push_back(slice);
}

void Sampler::PlanRules(const SamplingInput& input, int64_t rows, int64_t row, Needs* needs) {
  const Generation& generation = *input.generation;
  const int64_t length = generation.length() + (input.in_flight ? 1 : 0);
  const auto base = static_cast<int32_t>(rule_tokens_.size());
  rule_tokens_.Add(generation.rule_tokens());
  RowRules rules = generation.RulesAt(length, base);
  for (int64_t i = 0; i < rows; ++i) {
    rules.row = static_cast<int32_t>(row + i);
    rules.sequence = input.sequence + static_cast<int32_t>(i);
    rules_.Add(rules);
  }
  needs->rule_log_sums = needs->rule_log_sums || rules.log_softmax != 0;
}

// Rows that are drawn from are ranked, too, where others are, and of drawn candidates
// only the best.
void Sampler::PlanTopK(const SamplingInput& input, int64_t rows, Needs* needs) {
  const Generation& generation = *input.generation;
  const int64_t length = generation.length() + (input.in_flight ? 1 : 0);
  const int64_t k = std::max<int64_t>(1, generation.TopKSize());
  QT_CHECK_LE(k, kMaxTopK);
  const bool adds_bias = generation.RanksBeamsTogether();
  const bool log_softmax = adds_bias && !generation.HasRules(length);
  const bool carries_scores = adds_bias && input.in_flight;
  const int64_t entries = adds_bias ? 1 : rows;
  const int64_t entry_k = generation.SamplesBeams() ? 1 : k;
  for (int64_t entry = 0; entry < entries; ++entry) {
    top_k_plan_.AddEntry(rows / entries, entry_k, log_softmax);
  }
  for (int64_t row = 0; row < rows; ++row) {
    top_k_plan_.AddRow(carries_scores ? 0.0f : generation.RowBias(row));
    carried_rows_.Add(carries_scores ? input.carried + static_cast<int32_t>(row) : -1);
  }
  needs->carries_scores = needs->carries_scores || carries_scores;
  needs->top_k = needs->top_k || (generation.TopKSize() > 0 && !generation.SamplesBeams());
  needs->adds_bias = needs->adds_bias || adds_bias;
  needs->log_softmax = needs->log_softmax || log_softmax;
  needs->max_k = std::max(needs->max_k, k);
}

void Sampler::PlanDraws(const SamplingInput& input, absl::Span<const int32_t> sequences,
                        SamplingSlice* slice) {
  const bool one_row = !input.in_flight && input.generation->rows() == 1;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int32_t row = one_row ? 0 : static_cast<int32_t>(i);
    Draw draw = input.generation->DrawFor(sequences[i]);
    draw.row = slice->row + row;
    draw.lens_at = input.sequence + row;
    draws_.Add(draw);
    draw_rows_.Add(draw.row);
  }
}

// What chooses the next tokens in a batch with beams; drawn ones of other requests come by row.
void Sampler::PlanBeamGroups(const Generation& generation, int64_t rows,
                             const SamplingSlice& slice) {
  if (generation.SamplesTokens()) return;
  BeamGroup group{.entry = slice.entry, .row = slice.row};
  if (generation.RanksBeamsTogether()) {
    group.beams = static_cast<int32_t>(rows);
    group.eos_begin = static_cast<int32_t>(eos_tokens_.size());
    eos_tokens_.Add(generation.eos_tokens());
    group.eos_end = static_cast<int32_t>(eos_tokens_.size());
    return beam_groups_.Add(group);
  }
  for (int64_t row = 0; row < rows; ++row, ++group.entry, ++group.row) beam_groups_.Add(group);
}

void Sampler::PlanBeamDraw(const SamplingInput& input, int64_t rows, const SamplingSlice& slice) {
  BeamDraw draw{.draw = input.generation->DrawFor(0),
                .rows = static_cast<int32_t>(rows),
                .entry = slice.entry,
                .k = static_cast<int32_t>(input.generation->TopKSize())};
  draw.draw.row = slice.row;
  draw.draw.lens_at = input.sequence;
  beam_draws_.Add(draw);
}

// ---- The batch ----

void Sampler::Enqueue(const Tensor& states, int which) {
  const SamplingBatch& batch = batches_[which];
  QT_CHECK_EQ(states.dim[0], batch.rows);
  const bool records = model_->stream().backend() != Backend::kCpu && NextTokensOnDevice(which) &&
                       batch.rows > 0 && !batch.needs.logprobs && batch.needs.top_logprobs == 0;
  if (records) {
    RunRecorded(states, which);
  } else {
    EnqueueOps(states, which);
  }
  model_->stream().Mark(which);
}

void Sampler::EnqueueStep(const DecodeBatch& step_batch, int which) {
  const SamplingBatch& batch = batches_[which];
  const Needs& needs = batch.needs;
  const bool joins =
      batch.token_per_row && batch.rows > 0 && !needs.logprobs && needs.top_logprobs == 0;
  if (!joins) return Enqueue(model_->Decode(step_batch), which);
  // What GraphKey tells of a batch without beams, but for where it lies.
  const DecodedStep step = model_->DecodeThen(
      step_batch, {.key = {id_, which, needs.top_k, needs.max_k, needs.rule_log_sums,
                      rule_tokens_.size() > 0, batch.rows, rules_.size(), draws_.size()},
              .queue = [&](const Tensor& states) { EnqueueOps(states, which); }});
  if (!step.followed) return Enqueue(step.states, which);
  model_->stream().Mark(which);
}

Sampler::GraphKey Sampler::GraphKeyOf(const Tensor& states, int which) const {
  const SamplingBatch& batch = batches_[which];
  const TokenHistory history = model_->history();
  GraphKey shape{.which = which,
                 .needs = batch.needs,
                 .rule_tokens = rule_tokens_.size() > 0,
                 .rows = batch.rows,
                 .entries = top_k_plan_.entries(),
                 .rules = rules_.size(),
                 .draws = draws_.size(),
                 .slots_stride = history.slots_stride,
                 .beam_draws = beam_draws_.size(),
                 .states = states.data,
                 .slots = history.slots,
                 .lens = history.lens.data()};
  if (batch.advances_beams) {
    shape.eos = eos_tokens_.size() > 0;
    shape.groups = beam_groups_.size();
  }
  for (const BeamDraw& draw : beam_draws_.span()) {
    shape.max_beams = std::max<int64_t>(shape.max_beams, draw.rows);
  }
  return shape;
}

void Sampler::RunRecorded(const Tensor& states, int which) {
  constexpr size_t kMostShapes = 1024;
  constexpr int64_t kSeenBefore = 3;
  const GraphKey shape = GraphKeyOf(states, which);
  // Batches that change with every step have more shapes than are worth recording.
  auto found = recorded_.find(shape);
  if (found == recorded_.end() && recorded_.size() < kMostShapes) {
    found = recorded_.try_emplace(shape).first;
  }
  if (found == recorded_.end()) return EnqueueOps(states, which);
  RecordedSearch& recorded = found->second;
  Device& device = model_->stream().device();
  if (recorded.seen++ == kSeenBefore) {
    recorded.graph = device.Record([&] { EnqueueOps(states, which); });
  }
  if (recorded.graph != nullptr) {
    device.Replay(*recorded.graph);
  } else {
    EnqueueOps(states, which);
  }
}

void Sampler::EnqueueOps(const Tensor& states, int which) {
  Stream& stream = model_->stream();
  const SamplingBatch& batch = batches_[which];
  const Needs& needs = batch.needs;
  if (needs.carries_scores) {
    CarryScores({.scores = Tensor::F32(beam_scores_.as<float>(), {max_rows_}),
                 .known = top_k_plan_.Args({.biases = true}).row_bias,
                 .from = carried_rows_.span(),
                 .biases = Tensor::F32(row_biases_.as<float>(), {max_rows_})},
                stream);
  }
  model_->Logits(states, Logits(batch.rows));
  // The sums that the ranking itself takes come in its own reading.
  if (needs.rule_log_sums || needs.logprobs) {
    LogSumExp({.logits = Logits(batch.rows), .out = LogSums(batch.rows)}, stream);
  }
  if (needs.top_logprobs > 0) EnqueueTopLogProbs(batch);
  if (rules_.size() > 0) EnqueueRules(batch);
  if (needs.top_k) EnqueueTopK(batch, which);
  if (draws_.size() > 0) EnqueueSample(batch, which);
  if (beam_draws_.size() > 0) EnqueueSampleBeams(batch, which);
  if (batch.advances_beams) EnqueueBeamStep(batch, which);
  if (needs.logprobs) EnqueueCandidateLogits(batch, which);
}

absl::Status Sampler::Wait(int which) {
  status_.Update(model_->stream().WaitForMark(which));
  return status_;
}

void Sampler::EnqueueTopLogProbs(const SamplingBatch& batch) {
  TopKPlan& plan = logprobs_plan_;
  plan.Begin();
  for (int64_t row = 0; row < batch.rows; ++row) {
    plan.AddEntry(1, batch.needs.top_logprobs, false);
  }
  plan.Commit();
  TopKArgs args = plan.Args({});
  args.scores = Logits(batch.rows);
  args.values = Matrix(top_logits_, DType::kF32, batch.rows, kMaxAlternatives);
  args.indices = Matrix(top_tokens_, DType::kI32, batch.rows, kMaxAlternatives);
  args.scratch = Scratch(topk_scratch_);
  TopK(args, model_->stream());
  model_->stream().Download(top_logits_.data(), batch.rows * kMaxAlternatives * 4);
  model_->stream().Download(top_tokens_.data(), batch.rows * kMaxAlternatives * 4);
}

void Sampler::EnqueueRules(const SamplingBatch& batch) {
  LogitRulesArgs args;
  args.logits = Logits(batch.rows);
  args.rules = rules_.span();
  args.tokens = rule_tokens_.span();
  args.history = model_->history();
  if (batch.needs.rule_log_sums) args.log_sums = LogSums(batch.rows);
  if (batch.needs.logprobs) args.kept = RawLogits(batch.rows);
  args.scratch = Scratch(rules_scratch_);
  LogitRules(args, model_->stream());
}

void Sampler::EnqueueTopK(const SamplingBatch& batch, int which) {
  Stream& stream = model_->stream();
  const Needs& needs = batch.needs;
  TopKArgs args = top_k_plan_.Args({.log_softmax = needs.log_softmax});
  if (needs.adds_bias) args.row_bias = RowBias(needs);
  args.scores = Logits(batch.rows);
  args.values = CandidateScores(batch, which);
  args.indices = CandidateIndices(batch, which);
  args.scratch = Scratch(topk_scratch_);
  if (batch.token_per_row) args.best = model_->chosen();
  if (needs.log_softmax) args.log_sums = Tensor::F32(top_k_log_sums_.as<float>(), {batch.rows});
  TopK(args, stream);
}

void Sampler::EnqueueSample(const SamplingBatch& batch, int which) {
  const int64_t n = draws_.size();
  SampleArgs args;
  args.logits = Logits(batch.rows);
  args.draws = draws_.span();
  args.lens = model_->history().lens;
  args.tokens = Tensor::Dense(sampled_tokens_.as<int32_t>() + which * max_rows_, DType::kI32, {n});
  if (NextTokensOnDevice(which)) args.chosen = model_->chosen();
  args.scratch = Scratch(sample_scratch_);
  Sample(args, model_->stream());
}

// In place of what the ranking found for them.
void Sampler::EnqueueSampleBeams(const SamplingBatch& batch, int which) {
  SampleBeamsArgs args;
  args.logits = Logits(batch.rows);
  args.row_bias = RowBias(batch.needs);
  args.draws = beam_draws_.span();
  args.lens = model_->history().lens;
  args.values = CandidateScores(batch, which);
  args.indices = CandidateIndices(batch, which);
  args.scratch = Scratch(sample_scratch_);
  SampleBeams(args, model_->stream());
}

void Sampler::EnqueueBeamStep(const SamplingBatch& batch, int which) {
  BeamStep({.values = CandidateScores(batch, which),
            .indices = CandidateIndices(batch, which),
            .vocab = vocab_,
            .groups = beam_groups_.span(),
            .eos = eos_tokens_.span(),
            .tokens = model_->chosen(),
            .parents = model_->parents(),
            .scores = Tensor::F32(beam_scores_.as<float>(), {max_rows_})},
           model_->stream());
}

// Raw logits of what was chosen.
void Sampler::EnqueueCandidateLogits(const SamplingBatch& batch, int which) {
  Stream& stream = model_->stream();
  CandidateLogitsArgs args;
  args.logits = Logits(batch.rows);
  args.kept = RawLogits(batch.rows);
  if (batch.needs.top_k) {
    args.first_rows = entry_rows_.span();
    args.from_kept = entry_use_raw_.span();
    args.indices = CandidateIndices(batch, which);
    args.values =
        Tensor::F32(candidate_logits_.as<float>(), {top_k_plan_.entries(), batch.needs.max_k});
    CandidateLogits(args, stream);
  }
  if (draws_.size() > 0) {
    args.first_rows = draw_rows_.span();
    args.from_kept = draw_use_raw_.span();
    const int32_t* drawn = sampled_tokens_.as<int32_t>() + which * max_rows_;
    args.indices = Tensor::Dense(drawn, DType::kI32, {draws_.size(), 1});
    args.values = Tensor::F32(sampled_logits_.as<float>(), {draws_.size(), 1});
    CandidateLogits(args, stream);
  }
  stream.Download(log_sums_.data(), batch.rows * 4);
}

// ---- The results ----

RowResults Sampler::ResultsOf(const GenerationSlice& chosen, int which) const {
  const SamplingSlice& slice = *chosen.slice;
  const int64_t max_k = batches_[which].needs.max_k, row = slice.row;
  const int64_t at = slice.entry * max_k;
  RowResults results;
  results.sequences = SequencesOf(slice, which);
  results.candidate_scores = candidate_scores_.as<float>() + CandidateOffset(which) + at;
  results.candidate_indices = candidate_indices_.as<int32_t>() + CandidateOffset(which) + at;
  results.candidate_logits = candidate_logits_.as<float>() + at;
  if (chosen.generation->SamplesTokens()) {
    results.tokens = sampled_tokens_.as<int32_t>() + which * max_rows_ + slice.draw;
    results.token_logits = sampled_logits_.as<float>() + slice.draw;
    results.token_stride = 1;
  } else {
    results.tokens = results.candidate_indices;
    results.token_logits = results.candidate_logits;
    results.token_stride = max_k;
  }
  results.log_sums = log_sums_.as<float>() + row;
  results.top_logits = top_logits_.as<float>() + row * kMaxAlternatives;
  results.top_tokens = top_tokens_.as<int32_t>() + row * kMaxAlternatives;
  results.top_stride = kMaxAlternatives;
  return results;
}

void Sampler::Select(absl::Span<const GenerationSlice> chosen, int which) {
  const auto select = [&](int64_t task) {
    chosen[task].generation->ApplyResults(ResultsOf(chosen[task], which));
  };
  const auto tasks = static_cast<int64_t>(chosen.size());
  // To take a token takes less than to wake a thread.
  if (batches_[which].beams) {
    model_->stream().pool().ParallelFor(tasks, [&](int64_t task, int) { select(task); });
  } else {
    for (int64_t task = 0; task < tasks; ++task) select(task);
  }
}

}  // namespace quintet
