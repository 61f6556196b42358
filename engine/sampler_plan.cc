// The part of Sampler that plans a batch on the host.
#include <algorithm>
#include <bit>

#include "engine/sampler.h"
#include "kernels/base/check.h"
#include "kernels/linear/gemm_rows.h"

namespace quintet {
namespace {

// Returns the number of the generation's logits rows or of its random draws, whichever is larger: a
// batch holds at most LogitsChunkRows rows and at most as many draws.
int64_t MaxRows(const Generation& generation) {
  return std::max(generation.rows(), static_cast<int64_t>(generation.live_sequences().size()));
}

}  // namespace

size_t Sampler::CountFitting(absl::Span<const SamplingInput> inputs) const {
  int64_t rows = 0, tokens = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Generation& generation = *inputs[i].generation;
    rows += MaxRows(generation);
    tokens += static_cast<int64_t>(generation.rule_tokens().size());
    if (rows <= max_rows_ && tokens <= kMaxRuleTokens) continue;
    QT_CHECK(i > 0);
    return i;
  }
  return inputs.size();
}

void Sampler::Plan(absl::Span<const SamplingInput> inputs, StepSlot slot, bool whole_step) {
  SamplingBatch& batch = batches_[Index(slot)];
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
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i + kAhead < inputs.size()) inputs[i + kAhead].generation->Prefetch();
    PlanGeneration(inputs[i], &batch);
  }
  batch.token_per_row = batch.one_sequence_per_row && !batch.beams;
  batch.advances_beams =
      async_scheduling_ && batch.one_sequence_per_row && batch.beams && !batch.needs.logprobs;
  // EnqueueCandidateLogits reads the token indices of all top-k entries, also of those that no
  // request needs; therefore TopK must run and fill them all.
  if (batch.needs.logprobs && beam_draws_.size() > 0) batch.needs.top_k = true;
  batch.padded_rows = batch.rows;
  if (whole_step) PadRows(&batch);
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
  const int64_t group = generation.RanksBeamsTogether() ? rows : 1;
  batch->uniform_group = batch->rows == 0 || batch->uniform_group == group ? group : 0;
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

// Adds the top-k entries of one generation: in beam search one for the rows of all beams, otherwise
// one per row. Sampled rows and beam sampling need no top-k candidates, but another generation of
// the batch may need some. They therefore get entries with k = 1, so that the numbering of entries
// still follows that of the rows.
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

// Adds the groups of BeamStep: in beam search one for all beams of the request, in greedy decoding
// one per row. Sampled rows need none, because Sample writes their next tokens.
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

// On a GPU, pads a large batch of greedy rows, or of generations with equally many beams each. The
// number of rows of such a batch changes at every step; with padding, few CUDA graphs serve all its
// steps. The padding rows have arbitrary results, which are written behind those of the other rows.
// The list of logits-processor rules is padded as well, with rules without effect.
void Sampler::PadRows(SamplingBatch* batch) {
  const Needs& needs = batch->needs;
  const int64_t group = batch->uniform_group;
  const bool only_top_k = needs.top_k && !needs.logprobs && needs.top_logprobs == 0 &&
                          draws_.size() == 0 && beam_draws_.size() == 0;
  if (model_->stream().backend() == Backend::kCpu || !only_top_k || group == 0) return;
  const int64_t most = std::min(max_rows_, model_->limits().max_step_sequences) / group * group;
  const int64_t classes = PaddedGemmRows(batch->rows, most);
  const int64_t padded = (classes + group - 1) / group * group;
  for (int64_t row = batch->rows; row < padded; row += group) {
    const auto eos = static_cast<int32_t>(eos_tokens_.size());
    if (async_scheduling_) {
      beam_groups_.Add({.entry = static_cast<int32_t>(top_k_plan_.entries()),
                        .row = static_cast<int32_t>(row),
                        .beams = group > 1 ? static_cast<int32_t>(group) : BeamGroup().beams,
                        .eos_begin = eos,
                        .eos_end = eos});
    }
    top_k_plan_.AddEntry(group, needs.max_k, needs.log_softmax);
    for (int64_t i = 0; i < group; ++i) {
      top_k_plan_.AddRow(0.0f);
      carried_rows_.Add(-1);
    }
  }
  batch->padded_rows = padded;
  if (rules_.size() == 0) return;
  const auto rules = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rules_.size())));
  while (rules_.size() < std::min(rules, max_rows_)) rules_.Add(RowRules());
}

}  // namespace quintet
