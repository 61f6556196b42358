// The part of Sampler that plans a batch on the host.
#include <algorithm>
#include <bit>
#include <span>

#include "engine/sampler.h"
#include "kernels/base/check.h"
#include "kernels/linear/gemm_rows.h"

namespace quintet {
namespace {

// Returns the generation's number of logits rows or of random draws, whichever is larger. The limit
// LogitsChunkRows of a batch applies to both numbers.
int64_t MaxRows(const Generation& generation) {
  return std::max(generation.rows(), static_cast<int64_t>(generation.live_sequences().size()));
}

// Returns how many logits rows the batch has for the request whose Generation is in `input`.
int64_t RowsOf(const SamplingInput& input) {
  const Generation& generation = *input.generation;
  return input.in_flight ? static_cast<int64_t>(generation.live_sequences().size())
                         : generation.rows();
}

// Returns how many tokens, prompt included, each sequence of the request whose Generation is in
// `input` has when the batch runs.
int64_t LengthOf(const SamplingInput& input) {
  return input.generation->length() + (input.in_flight ? 1 : 0);
}

}  // namespace

size_t Sampler::CountFitting(std::span<const SamplingInput> inputs) const {
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

void Sampler::Plan(std::span<const SamplingInput> inputs, StepSlot slot, bool whole_step) {
  BeginPlan(inputs, slot, whole_step);
  for (size_t i = 0; i < inputs.size(); ++i) PlanOne(inputs, i, slot);
  EndPlan(slot);
}

void Sampler::BeginPlan(std::span<const SamplingInput> inputs, StepSlot slot, bool whole_step) {
  SamplingBatch& batch = batches_[Index(slot)];
  batch.slices.clear();
  batch.end = {};
  batch.needs = {};
  batch.one_sequence_per_row = true;
  batch.beams = false;
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i + kAhead < inputs.size()) inputs[i + kAhead].generation->Prefetch();
    AddSlice(inputs[i], &batch);
  }
  batch.rows = batch.end.row;
  batch.token_per_row = batch.one_sequence_per_row && !batch.beams;
  batch.advances_beams =
      async_scheduling_ && batch.one_sequence_per_row && batch.beams && !batch.needs.logprobs;
  // EnqueueCandidateLogits reads the token indices of all top-k entries, also of those that no
  // request needs; therefore TopK must run and fill them all.
  if (batch.needs.logprobs && batch.end.beam_draw > 0) batch.needs.top_k = true;
  batch.pads = whole_step && CanPad(batch);
  batch.padded_rows = batch.pads ? PaddedRows(batch) : batch.rows;
  ResizePlan(&batch);
  FillPadding(batch);
}

void Sampler::AddSlice(const SamplingInput& input, SamplingBatch* batch) const {
  const Generation& generation = *input.generation;
  const auto sequences = static_cast<int32_t>(generation.live_sequences().size());
  const int64_t rows = RowsOf(input), length = LengthOf(input);
  const bool beams = generation.RanksBeamsTogether(), ruled = generation.HasRules(length);

  Needs& needs = batch->needs;
  if (generation.wants_logprobs()) {
    needs.logprobs = true;
    needs.top_logprobs = std::max(needs.top_logprobs, generation.top_logprobs());
  }
  needs.top_k = needs.top_k || (generation.TopKSize() > 0 && !generation.SamplesBeams());
  QT_CHECK_LE(generation.TopKSize(), kMaxTopK);
  needs.max_k = std::max(needs.max_k, generation.TopKSize());
  needs.adds_bias = needs.adds_bias || beams;
  needs.carries_scores = needs.carries_scores || (beams && input.in_flight);
  needs.log_softmax = needs.log_softmax || (beams && !ruled);
  needs.rule_log_sums = needs.rule_log_sums || generation.LogitsAreLogProbs(length);
  batch->beams = batch->beams || beams;
  batch->one_sequence_per_row = batch->one_sequence_per_row && rows == sequences;
  const int64_t group = beams ? rows : 1;
  batch->uniform_group = batch->end.row == 0 || batch->uniform_group == group ? group : 0;

  SamplingPosition& end = batch->end;
  batch->slices.push_back({input.id, end, end.sequence + sequences});
  end.row += static_cast<int32_t>(rows);
  end.entry += beams ? 1 : static_cast<int32_t>(rows);
  end.sequence += sequences;
  if (ruled) {
    end.rule += static_cast<int32_t>(rows);
    end.rule_token += static_cast<int32_t>(generation.rule_tokens().size());
  }
  if (generation.SamplesTokens()) {
    end.draw += sequences;
  } else if (async_scheduling_) {
    end.beam_group += beams ? 1 : static_cast<int32_t>(rows);
    end.eos_token += beams ? static_cast<int32_t>(generation.eos_tokens().size()) : 0;
  }
  if (generation.SamplesBeams()) ++end.beam_draw;
}

// On a GPU, a batch without random draws or log-probabilities can be padded if all its rows are
// greedy or all its generations have equally many beams. The number of rows of a large batch
// changes at every step; with padding (PaddedRows), few CUDA graphs serve all steps. The results of
// padding rows are arbitrary and are written behind the results of the other rows. The list of
// logits-processor rules is padded as well, with rules that have no effect.
bool Sampler::CanPad(const SamplingBatch& batch) const {
  const Needs& needs = batch.needs;
  return model_->stream().backend() != Backend::kCpu && batch.uniform_group > 0 && needs.top_k &&
         !needs.logprobs && needs.top_logprobs == 0 && batch.end.draw == 0 &&
         batch.end.beam_draw == 0;
}

int64_t Sampler::PaddedRows(const SamplingBatch& batch) const {
  const int64_t group = batch.uniform_group;
  const int64_t most = std::min(max_rows_, model_->limits().max_step_sequences) / group * group;
  return (PaddedGemmRows(batch.rows, most) + group - 1) / group * group;
}

void Sampler::ResizePlan(SamplingBatch* batch) {
  const SamplingPosition& end = batch->end;
  const int64_t padding =
      batch->pads ? (batch->padded_rows - batch->rows) / batch->uniform_group : 0;
  batch->sequences.resize(end.sequence);
  top_k_plan_.Begin(end.entry + padding, batch->padded_rows);
  carried_rows_.Resize(batch->padded_rows);
  int64_t rules = end.rule;
  if (batch->pads && rules > 0) {
    const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rules)));
    rules = std::min(power, max_rows_);
  }
  rules_.Resize(rules);
  rule_tokens_.Resize(end.rule_token);
  draws_.Resize(end.draw);
  beam_draws_.Resize(end.beam_draw);
  beam_groups_.Resize(async_scheduling_ ? end.beam_group + padding : 0);
  eos_tokens_.Resize(end.eos_token);
  entry_rows_.Resize(end.entry);
  entry_use_raw_.Resize(end.entry);
  draw_rows_.Resize(end.draw);
  draw_use_raw_.Resize(end.draw);
}

void Sampler::FillPadding(const SamplingBatch& batch) {
  SamplingPosition at = batch.end;
  for (int64_t rule = at.rule; rule < rules_.size(); ++rule) rules_[rule] = {};
  const auto group = static_cast<int32_t>(batch.uniform_group);
  for (; at.row < batch.padded_rows; at.row += group, ++at.entry, ++at.beam_group) {
    top_k_plan_.SetEntry(at.entry, at.row + group, batch.needs.max_k, batch.needs.log_softmax);
    for (int32_t row = at.row; row < at.row + group; ++row) {
      top_k_plan_.SetRow(row, 0.0f);
      carried_rows_[row] = -1;
    }
    if (!async_scheduling_) continue;
    beam_groups_[at.beam_group] = {.entry = at.entry,
                                   .row = at.row,
                                   .beams = group,
                                   .eos_begin = at.eos_token,
                                   .eos_end = at.eos_token};
  }
}

void Sampler::PlanOne(std::span<const SamplingInput> inputs, size_t i, StepSlot slot) {
  SamplingBatch& batch = batches_[Index(slot)];
  const SamplingInput& input = inputs[i];
  const Generation& generation = *input.generation;
  const SamplingPosition& at = batch.slices[i].begin;
  const std::span<const int32_t> sequences = generation.live_sequences();
  std::copy(sequences.begin(), sequences.end(), batch.sequences.begin() + at.sequence);
  const int64_t rows = RowsOf(input);
  const bool ruled = generation.HasRules(LengthOf(input));
  if (ruled) FillRules(input, at, rows);
  FillTopK(input, at, rows, batch.needs);
  if (generation.SamplesTokens()) {
    FillDraws(input, at);
  } else if (async_scheduling_) {
    FillBeamGroups(generation, at, rows);
  }
  if (generation.SamplesBeams()) FillBeamDraw(input, at, rows);
  if (!batch.needs.logprobs) return;
  const int32_t entries = generation.RanksBeamsTogether() ? 1 : static_cast<int32_t>(rows);
  for (int32_t entry = 0; entry < entries; ++entry) {
    entry_rows_[at.entry + entry] = at.row + entry;
    entry_use_raw_[at.entry + entry] = ruled ? 1 : 0;
  }
  const size_t draws = generation.SamplesTokens() ? sequences.size() : 0;
  for (size_t draw = 0; draw < draws; ++draw) {
    draw_use_raw_[at.draw + static_cast<int64_t>(draw)] = ruled ? 1 : 0;
  }
}

void Sampler::FillRules(const SamplingInput& input, const SamplingPosition& at, int64_t rows) {
  const Generation& generation = *input.generation;
  rule_tokens_.Set(at.rule_token, generation.rule_tokens());
  RowRules rules = generation.RulesAt(LengthOf(input), at.rule_token);
  for (int32_t i = 0; i < rows; ++i) {
    rules.row = at.row + i;
    rules.sequence = input.sequence + i;
    rules_[at.rule + i] = rules;
  }
}

// Sets the top-k entries of one generation: in beam search one for the rows of all beams, otherwise
// one per row. Random sampling and beam sampling need no top-k candidates, but another generation
// of the batch may need some. Generations that sample therefore get entries with k = 1, so that the
// numbering of entries still follows that of the rows.
void Sampler::FillTopK(const SamplingInput& input, const SamplingPosition& at, int64_t rows,
                       const Needs& needs) {
  const Generation& generation = *input.generation;
  const bool beams = generation.RanksBeamsTogether();
  const int64_t k = generation.SamplesBeams() ? 1 : std::max<int64_t>(1, generation.TopKSize());
  if (beams) {
    top_k_plan_.SetEntry(at.entry, at.row + rows, k, !generation.HasRules(LengthOf(input)));
  } else {
    for (int64_t i = 0; i < rows; ++i) {
      top_k_plan_.SetEntry(at.entry + i, at.row + i + 1, k, /*log_softmax=*/false);
    }
  }
  if (!needs.adds_bias) return;
  const bool carried = beams && input.in_flight;
  for (int32_t i = 0; i < rows; ++i) {
    top_k_plan_.SetRow(at.row + i, carried ? 0.0f : generation.RowBias(i));
    carried_rows_[at.row + i] = carried ? input.carried + i : -1;
  }
}

void Sampler::FillDraws(const SamplingInput& input, const SamplingPosition& at) {
  const bool one_row = !input.in_flight && input.generation->rows() == 1;
  const std::span<const int32_t> sequences = input.generation->live_sequences();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int32_t row = one_row ? 0 : static_cast<int32_t>(i);
    Draw draw = input.generation->DrawFor(sequences[i]);
    draw.row = at.row + row;
    draw.lens_at = input.sequence + row;
    draws_[at.draw + static_cast<int64_t>(i)] = draw;
    draw_rows_[at.draw + static_cast<int64_t>(i)] = draw.row;
  }
}

// Sets the groups of BeamStep: in beam search one for all beams of the request, in greedy decoding
// one per row. Sampled rows need none, because Sample writes their next tokens.
void Sampler::FillBeamGroups(const Generation& generation, const SamplingPosition& at,
                             int64_t rows) {
  BeamGroup group{.entry = at.entry, .row = at.row};
  if (generation.RanksBeamsTogether()) {
    const std::span<const int32_t> eos = generation.eos_tokens();
    eos_tokens_.Set(at.eos_token, eos);
    group.beams = static_cast<int32_t>(rows);
    group.eos_begin = at.eos_token;
    group.eos_end = at.eos_token + static_cast<int32_t>(eos.size());
    beam_groups_[at.beam_group] = group;
    return;
  }
  for (int64_t i = 0; i < rows; ++i, ++group.entry, ++group.row) {
    beam_groups_[at.beam_group + i] = group;
  }
}

void Sampler::FillBeamDraw(const SamplingInput& input, const SamplingPosition& at, int64_t rows) {
  BeamDraw draw{.draw = input.generation->DrawFor(0),
                .rows = static_cast<int32_t>(rows),
                .entry = at.entry,
                .k = static_cast<int32_t>(input.generation->TopKSize())};
  draw.draw.row = at.row;
  draw.draw.lens_at = input.sequence;
  beam_draws_[at.beam_draw] = draw;
}

void Sampler::EndPlan(StepSlot slot) {
  const SamplingBatch& batch = batches_[Index(slot)];
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

}  // namespace quintet
