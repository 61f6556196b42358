#include "engine/sampler.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "engine/logits_rows.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/gemm_rows.h"
#include "kernels/runtime/parallel_blocks.h"
#include "kernels/sampling/candidate_logits.h"

namespace quintet {
namespace {

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
      max_rows_(LogitsChunkRows(vocab_, model->limits(), model->stream())),
      async_scheduling_(async_scheduling && model->next_tokens().defined() &&
                        model->parent_beams().defined()),
      // A batch is identified by its GraphKey. If keys change with every step, captures are not
      // worth their cost; therefore a CUDA graph is captured only at the third use of its key. At
      // most `capacity` keys are kept, the most recently used ones.
      graphs_({.threshold = 3, .capacity = 1024}),
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

int64_t Sampler::BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream) {
  const int64_t rows = LogitsChunkRows(config.vocab, limits, stream);
  int64_t bytes = 2 * TopKPlan::BlockBytes(rows) + kMaxRuleTokens * 4;
  bytes += rows * static_cast<int64_t>(sizeof(RowRules) + sizeof(Draw) + sizeof(BeamDraw) +
                                       sizeof(BeamGroup) + (5 + kMaxEosTokens) * sizeof(int32_t));
  for (const Spec& spec : BufferSpecs(config, limits, stream, nullptr)) bytes += spec.bytes;
  return bytes;
}

std::array<Sampler::Spec, Sampler::kBuffers> Sampler::BufferSpecs(const ModelConfig& config,
                                                                  const ModelLimits& limits,
                                                                  const Stream& stream,
                                                                  Sampler* sampler) {
  constexpr int64_t kMinScratch = 64;
  const int64_t vocab = config.vocab, rows = LogitsChunkRows(vocab, limits, stream);
  const int64_t values = rows * 4;  // one f32 or i32 per row
  const int64_t logits = rows * LogitsStride(vocab) * 4;
  const int64_t top_k = std::max(kMinScratch, TopKScratchBytes(rows, vocab, kMaxTopK, stream));
  const int64_t rules = std::max(kMinScratch, LogitsProcessorsScratchBytes(vocab, stream));
  const int64_t sample = std::max({kMinScratch, SampleScratchBytes(vocab, stream),
                                   SampleBeamsScratchBytes(rows, vocab, kMaxTopK, stream)});
  const auto at = [sampler](Buffer Sampler::*member) {
    return sampler == nullptr ? nullptr : &(sampler->*member);
  };
  // Buffers whose first dimension is 2 have one half for each of the two steps that can be in
  // flight (StepSlot).
  return {{
      // Scratch memory (i8). The three buffers are for TopK, for ApplyLogitsProcessors, and for
      // Sample and SampleBeams together.
      {at(&Sampler::topk_scratch_), top_k, Memory::kDevice},
      {at(&Sampler::rules_scratch_), rules, Memory::kDevice},
      {at(&Sampler::sample_scratch_), sample, Memory::kDevice},
      // [rows] f32: log-sum-exp of those logits rows that TopK ranks by log-probability.
      {at(&Sampler::top_k_log_sums_), values, Memory::kDevice},
      // [rows, logits_stride] f32: logits; the logits processors change them in place.
      {at(&Sampler::logits_), logits, Memory::kDevice},
      // [rows, logits_stride] f32: copy of the logits before the logits processors, for rows that
      // need log-probabilities. While no row does, the buffer's pages are never touched on a CPU.
      {at(&Sampler::raw_logits_), logits, Memory::kDevice},
      // [rows] f32: beam scores after the latest BeamStep.
      {at(&Sampler::beam_scores_), values, Memory::kDevice},
      // [rows] f32: running beam scores that the next TopK adds to the values of each row.
      // GatherScores fills this buffer from the scores after the latest BeamStep.
      {at(&Sampler::row_biases_), values, Memory::kDevice},
      // [rows] f32: log-sum-exp of the raw logits.
      {at(&Sampler::log_sums_), values, Memory::kPinned},
      // [2, entries, max_k]: the top-k candidates, for each of the two StepSlots. An entry is one
      // list that TopK returns. The first buffer has the f32 scores, the second the i32 indices.
      {at(&Sampler::candidate_scores_), 2 * values * kMaxTopK, Memory::kPinned},
      {at(&Sampler::candidate_indices_), 2 * values * kMaxTopK, Memory::kPinned},
      // [2, draws] i32: sampled tokens of each of the two StepSlots.
      {at(&Sampler::sampled_tokens_), 2 * values, Memory::kPinned},
      // [entries, max_k] f32: raw logits of the top-k candidates; an entry is one list that TopK
      // returns.
      {at(&Sampler::candidate_logits_), values * kMaxTopK, Memory::kPinned},
      // [draws] f32: raw logits of the sampled tokens.
      {at(&Sampler::sampled_logits_), values, Memory::kPinned},
      // [rows, kMaxTopLogProbs]: f32 raw logits and i32 ids of the most likely tokens, one buffer
      // each.
      {at(&Sampler::top_logits_), values * kMaxTopLogProbs, Memory::kPinned},
      {at(&Sampler::top_tokens_), values * kMaxTopLogProbs, Memory::kPinned},
  }};
}

absl::Status Sampler::Allocate() {
  const Stream& stream = model_->stream();
  for (const Spec& spec : BufferSpecs(model_->config(), model_->limits(), stream, this)) {
    QT_ASSIGN_OR_RETURN(*spec.buffer, spec.memory == Memory::kDevice
                                          ? stream.Allocate(spec.bytes)
                                          : stream.AllocatePinned(spec.bytes));
  }
  absl::Status status;
  for (TopKPlan* plan : {&top_k_plan_, &logprobs_plan_}) status.Update(plan->Allocate(max_rows_));
  status.Update(rules_.Allocate(max_rows_));
  status.Update(rule_tokens_.Allocate(kMaxRuleTokens));
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

Tensor Sampler::DeviceMatrix(const Buffer& pinned, DType dtype, int64_t rows,
                             int64_t columns) const {
  return model_->stream().DeviceTensor(Tensor::Dense(pinned.data(), dtype, {rows, columns}));
}

Tensor Sampler::Logits(int64_t rows) const {
  return Tensor::F32(logits_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor Sampler::RawLogits(int64_t rows) const {
  return Tensor::F32(raw_logits_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor Sampler::LogSums(int64_t rows) const {
  return model_->stream().DeviceTensor(Tensor::F32(log_sums_.as<float>(), {rows}));
}

Tensor Sampler::Scratch(const Buffer& buffer) const {
  return Tensor::Dense(buffer.data(), DType::kI8, {buffer.bytes()});
}

Tensor Sampler::CandidateScores(const SamplingBatch& batch, StepSlot slot) const {
  return Tensor::F32(candidate_scores_.as<float>() + CandidateOffset(slot),
                     {top_k_plan_.entries(), batch.needs.max_k});
}

Tensor Sampler::CandidateIndices(const SamplingBatch& batch, StepSlot slot) const {
  return Tensor::Dense(candidate_indices_.as<int32_t>() + CandidateOffset(slot), DType::kI32,
                       {top_k_plan_.entries(), batch.needs.max_k});
}

Tensor Sampler::RowBias(const Needs& needs) const {
  return needs.carries_scores ? Tensor::F32(row_biases_.as<float>(), {max_rows_})
                              : top_k_plan_.Args({.biases = true}).row_bias;
}

// Offset in elements, in candidate_scores_ and candidate_indices_, of the half that belongs to
// StepSlot `slot`.
int64_t Sampler::CandidateOffset(StepSlot slot) const { return Index(slot) * max_rows_ * kMaxTopK; }

std::span<const int32_t> Sampler::SequencesOf(const SamplingSlice& slice, StepSlot slot) const {
  return std::span(batches_[Index(slot)].sequences)
      .subspan(slice.begin.sequence, slice.sequences_end - slice.begin.sequence);
}

// ---- Kernels ----

Tensor Sampler::PaddedStates(const Tensor& states, int64_t first,
                             const SamplingBatch& batch) const {
  QT_CHECK_LE(first + batch.rows, states.dim[0]);
  Tensor rows = states.Rows(first, first + batch.rows);
  if (model_->stream().backend() == Backend::kCpu) return rows;
  const int64_t room = std::min(max_rows_, model_->limits().max_step_tokens - first);
  QT_CHECK_LE(batch.padded_rows, room);
  rows.dim[0] = PaddedGemmRows(batch.padded_rows, room);
  return rows;
}

void Sampler::Enqueue(const Tensor& all_states, int64_t first, StepSlot slot) {
  const SamplingBatch& batch = batches_[Index(slot)];
  const Tensor states = PaddedStates(all_states, first, batch);
  const bool records = model_->stream().backend() != Backend::kCpu && NextTokensOnDevice(slot) &&
                       batch.rows > 0 && !batch.needs.logprobs && batch.needs.top_logprobs == 0;
  if (records) {
    LaunchGraph(states, slot);
  } else {
    EnqueueOps(states, slot);
  }
  model_->stream().RecordEvent(Index(slot));
}

void Sampler::EnqueueStep(const DecodeBatch& decode_batch, StepSlot slot) {
  const SamplingBatch& batch = batches_[Index(slot)];
  const Needs& needs = batch.needs;
  const bool joins =
      batch.token_per_row && batch.rows > 0 && !needs.logprobs && needs.top_logprobs == 0;
  if (!joins) return Enqueue(model_->Decode(decode_batch), 0, slot);
  // The model captures its decoder step and the sampling kernels in one CUDA graph. This key
  // identifies the sampling kernels. It has only those fields of GraphKey that can differ between
  // batches without beams. The addresses and slots_stride are omitted, because the model's own part
  // of the graph's key contains them.
  const DecodedStep step = model_->DecodeAndAppend(
      decode_batch,
      {.key = {id_, Index(slot), needs.top_k, needs.max_k, needs.rule_log_sums,
               rule_tokens_.size() > 0, batch.padded_rows, rules_.size(), draws_.size()},
       .enqueue = [&](const Tensor& states) { EnqueueOps(PaddedStates(states, 0, batch), slot); }});
  if (!step.appended) return Enqueue(step.states, 0, slot);
  model_->stream().RecordEvent(Index(slot));
}

Sampler::GraphKey Sampler::GraphKeyOf(const Tensor& states, StepSlot slot) const {
  const SamplingBatch& batch = batches_[Index(slot)];
  const TokenHistory history = model_->history();
  GraphKey shape{.slot = slot,
                 .needs = batch.needs,
                 .rule_tokens = rule_tokens_.size() > 0,
                 .rows = batch.padded_rows,
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

void Sampler::LaunchGraph(const Tensor& states, StepSlot slot) {
  Device& device = model_->stream().device();
  const CudaGraph* const graph = graphs_.Use(GraphKeyOf(states, slot), [&] {
    return device.CaptureGraph([&] { EnqueueOps(states, slot); });
  });
  if (graph != nullptr) {
    device.LaunchGraph(*graph);
  } else {
    EnqueueOps(states, slot);
  }
}

void Sampler::EnqueueOps(const Tensor& states, StepSlot slot) {
  Stream& stream = model_->stream();
  const SamplingBatch& batch = batches_[Index(slot)];
  const Needs& needs = batch.needs;
  if (needs.carries_scores) {
    GatherScores({.scores = Tensor::F32(beam_scores_.as<float>(), {max_rows_}),
                  .known = top_k_plan_.Args({.biases = true}).row_bias,
                  .from = carried_rows_.span(),
                  .biases = Tensor::F32(row_biases_.as<float>(), {max_rows_})},
                 stream);
  }
  model_->Logits(states, Logits(states.dim[0]));
  // Computes the log-sum-exp of the rows for log-probabilities and for logits processors. Rows that
  // TopK ranks by log-probability need no LogSumExp: TopK computes their log-sum-exp itself.
  if (needs.rule_log_sums || needs.logprobs) {
    LogSumExp({.logits = Logits(batch.padded_rows), .out = LogSums(batch.padded_rows)}, stream);
  }
  if (needs.top_logprobs > 0) EnqueueTopLogProbs(batch);
  if (rules_.size() > 0) EnqueueRules(batch);
  if (needs.top_k) EnqueueTopK(batch, slot);
  if (draws_.size() > 0) EnqueueSample(batch, slot);
  if (beam_draws_.size() > 0) EnqueueSampleBeams(batch, slot);
  if (batch.advances_beams) EnqueueBeamStep(batch, slot);
  if (needs.logprobs) EnqueueCandidateLogits(batch, slot);
}

absl::Status Sampler::Wait(StepSlot slot) {
  status_.Update(model_->stream().WaitForEvent(Index(slot)));
  return status_;
}

void Sampler::EnqueueTopLogProbs(const SamplingBatch& batch) {
  TopKPlan& plan = logprobs_plan_;
  plan.Begin(batch.rows, batch.rows);
  for (int64_t row = 0; row < batch.rows; ++row) {
    plan.SetEntry(row, row + 1, batch.needs.top_logprobs, false);
  }
  plan.Commit();
  TopKArgs args = plan.Args({});
  args.scores = Logits(batch.rows);
  args.values = DeviceMatrix(top_logits_, DType::kF32, batch.rows, kMaxTopLogProbs);
  args.indices = DeviceMatrix(top_tokens_, DType::kI32, batch.rows, kMaxTopLogProbs);
  args.scratch = Scratch(topk_scratch_);
  TopK(args, model_->stream());
  model_->stream().CopyD2H(top_logits_.data(), batch.rows * kMaxTopLogProbs * 4);
  model_->stream().CopyD2H(top_tokens_.data(), batch.rows * kMaxTopLogProbs * 4);
}

void Sampler::EnqueueRules(const SamplingBatch& batch) {
  LogitsProcessorsArgs args;
  args.logits = Logits(batch.padded_rows);
  args.rules = rules_.span();
  args.tokens = rule_tokens_.span();
  args.history = model_->history();
  if (batch.needs.rule_log_sums) args.log_sums = LogSums(batch.padded_rows);
  if (batch.needs.logprobs) args.raw_logits = RawLogits(batch.padded_rows);
  args.scratch = Scratch(rules_scratch_);
  ApplyLogitsProcessors(args, model_->stream());
}

void Sampler::EnqueueTopK(const SamplingBatch& batch, StepSlot slot) {
  Stream& stream = model_->stream();
  const Needs& needs = batch.needs;
  TopKArgs args = top_k_plan_.Args({.log_softmax = needs.log_softmax});
  if (needs.adds_bias) args.row_bias = RowBias(needs);
  args.scores = Logits(batch.padded_rows);
  args.values = CandidateScores(batch, slot);
  args.indices = CandidateIndices(batch, slot);
  args.scratch = Scratch(topk_scratch_);
  if (batch.token_per_row) args.best = model_->next_tokens();
  if (needs.log_softmax)
    args.log_sums = Tensor::F32(top_k_log_sums_.as<float>(), {batch.padded_rows});
  TopK(args, stream);
}

void Sampler::EnqueueSample(const SamplingBatch& batch, StepSlot slot) {
  const int64_t n = draws_.size();
  SampleArgs args;
  args.logits = Logits(batch.rows);
  args.draws = draws_.span();
  args.lens = model_->history().lens;
  args.tokens =
      Tensor::Dense(sampled_tokens_.as<int32_t>() + Index(slot) * max_rows_, DType::kI32, {n});
  if (NextTokensOnDevice(slot)) args.next_tokens = model_->next_tokens();
  args.scratch = Scratch(sample_scratch_);
  Sample(args, model_->stream());
}

// Draws the candidates of beam sampling. They overwrite the candidates that TopK wrote into the
// same requests' entries of the result buffers.
void Sampler::EnqueueSampleBeams(const SamplingBatch& batch, StepSlot slot) {
  SampleBeamsArgs args;
  args.logits = Logits(batch.rows);
  args.row_bias = RowBias(batch.needs);
  args.draws = beam_draws_.span();
  args.lens = model_->history().lens;
  args.values = CandidateScores(batch, slot);
  args.indices = CandidateIndices(batch, slot);
  args.scratch = Scratch(sample_scratch_);
  SampleBeams(args, model_->stream());
}

void Sampler::EnqueueBeamStep(const SamplingBatch& batch, StepSlot slot) {
  BeamStep({.values = CandidateScores(batch, slot),
            .indices = CandidateIndices(batch, slot),
            .vocab = vocab_,
            .groups = beam_groups_.span(),
            .eos = eos_tokens_.span(),
            .tokens = model_->next_tokens(),
            .parents = model_->parent_beams(),
            .scores = Tensor::F32(beam_scores_.as<float>(), {max_rows_})},
           model_->stream());
}

// Gathers the raw logits of the candidates and of the sampled tokens. The host computes
// log-probabilities from them.
void Sampler::EnqueueCandidateLogits(const SamplingBatch& batch, StepSlot slot) {
  Stream& stream = model_->stream();
  CandidateLogitsArgs args;
  args.logits = Logits(batch.rows);
  args.raw_logits = RawLogits(batch.rows);
  if (batch.needs.top_k) {
    args.first_rows = entry_rows_.span();
    args.from_raw = entry_use_raw_.span();
    args.indices = CandidateIndices(batch, slot);
    args.values =
        Tensor::F32(candidate_logits_.as<float>(), {top_k_plan_.entries(), batch.needs.max_k});
    CandidateLogits(args, stream);
  }
  if (draws_.size() > 0) {
    args.first_rows = draw_rows_.span();
    args.from_raw = draw_use_raw_.span();
    const int32_t* drawn = sampled_tokens_.as<int32_t>() + Index(slot) * max_rows_;
    args.indices = Tensor::Dense(drawn, DType::kI32, {draws_.size(), 1});
    args.values = Tensor::F32(sampled_logits_.as<float>(), {draws_.size(), 1});
    CandidateLogits(args, stream);
  }
  stream.CopyD2H(log_sums_.data(), batch.rows * 4);
}

// ---- Results ----

RowResults Sampler::ResultsOf(const GenerationSlice& one, StepSlot slot) const {
  const SamplingPosition& begin = one.slice->begin;
  const int64_t max_k = batches_[Index(slot)].needs.max_k, row = begin.row;
  const int64_t at = begin.entry * max_k;
  RowResults results;
  results.sequences = SequencesOf(*one.slice, slot);
  results.candidate_scores = candidate_scores_.as<float>() + CandidateOffset(slot) + at;
  results.candidate_indices = candidate_indices_.as<int32_t>() + CandidateOffset(slot) + at;
  results.candidate_logits = candidate_logits_.as<float>() + at;
  if (one.generation->SamplesTokens()) {
    results.tokens = sampled_tokens_.as<int32_t>() + Index(slot) * max_rows_ + begin.draw;
    results.token_logits = sampled_logits_.as<float>() + begin.draw;
    results.token_stride = 1;
  } else {
    results.tokens = results.candidate_indices;
    results.token_logits = results.candidate_logits;
    results.token_stride = max_k;
  }
  results.log_sums = log_sums_.as<float>() + row;
  results.top_logits = top_logits_.as<float>() + row * kMaxTopLogProbs;
  results.top_tokens = top_tokens_.as<int32_t>() + row * kMaxTopLogProbs;
  results.top_stride = kMaxTopLogProbs;
  return results;
}

void Sampler::Select(std::span<const GenerationSlice> slices, StepSlot slot) {
  // A thread processes a block of generations (requests) at a time. Without beams the blocks are
  // large, because appending a token takes far less time than waking a thread. Selecting the beams
  // of a request takes far longer than appending a token; blocks with beams are therefore small.
  const int64_t block = batches_[Index(slot)].beams ? 4 : 256;
  ForEachInBlocks(&model_->stream().pool(), static_cast<int64_t>(slices.size()), block,
                  [&](int64_t i) {
                    constexpr size_t kAhead = 6;
                    const size_t next = static_cast<size_t>(i) + kAhead;
                    if (next < slices.size()) slices[next].generation->Prefetch();
                    slices[i].generation->ApplyResults(ResultsOf(slices[i], slot));
                  });
}

}  // namespace quintet
