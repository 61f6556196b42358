#include "engine/token_search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>

#include "engine/logits_rows.h"
#include "kernels/candidate_logits.h"
#include "kernels/check.h"

namespace quintet {
namespace {

constexpr int64_t kMaxRanking = 544;  // candidates of 32 beams with 16 eos ids
constexpr int64_t kMaxAlternatives = 20;
// Tokens that the rules of one search are about: several times what one request may name.
constexpr int64_t kRuleTokens = 1 << 16;
constexpr int64_t kMaxEosTokens = 16;  // of a request
constexpr size_t kBuffers = 16;
constexpr size_t kOfOps = 8;  // where these end

// Bytes of each buffer, in the order in which Allocate names them: those of ops, then the mirrored
// ones.
std::array<int64_t, kBuffers> BufferSizes(const ModelConfig& config, const Stream& stream) {
  const int64_t rows = LogitsChunkRows(stream), vocab = config.vocab, row = rows * 4;
  const int64_t logits = rows * LogitsStride(vocab) * 4;
  return {std::max<int64_t>(64, TopKScratchBytes(rows, vocab, kMaxRanking, stream)),
          std::max<int64_t>(64, LogitRulesScratchBytes(vocab, stream)),
          std::max<int64_t>({64, SampleScratchBytes(vocab, stream),
                             SampleBeamsScratchBytes(rows, vocab, kMaxRanking, stream)}),
          row,
          logits,
          logits,  // on a CPU touched only when log-probabilities are asked for
          row,
          row,
          row,
          2 * row * kMaxRanking,
          2 * row * kMaxRanking,
          2 * row,
          row * kMaxRanking,
          row,
          row * kMaxAlternatives,
          row * kMaxAlternatives};
}

// Rows or draws of a generation, of which a search has room for so many.
int64_t Share(const Generation& generation) {
  return std::max(generation.rows(), static_cast<int64_t>(generation.live().size()));
}

int64_t NextId() {
  static std::atomic<int64_t> next{0};
  return next++;
}

}  // namespace

TokenSearch::TokenSearch(Model* model, bool runs_ahead)
    : model_(model),
      id_(NextId()),
      vocab_(model->config().vocab),
      logits_stride_(LogitsStride(vocab_)),
      most_rows_(LogitsChunkRows(model->stream())),
      runs_ahead_(runs_ahead && model->chosen().defined() && model->parents().defined()),
      plan_(&model->stream()),
      alternatives_plan_(&model->stream()),
      rules_(&model->stream()),
      rule_tokens_(&model->stream()),
      draws_(&model->stream()),
      beam_draws_(&model->stream()),
      groups_(&model->stream()),
      eos_(&model->stream()),
      carried_(&model->stream()),
      entry_rows_(&model->stream()),
      entry_kept_(&model->stream()),
      draw_rows_(&model->stream()),
      draw_kept_(&model->stream()) {}

int64_t TokenSearch::BufferBytes(const ModelConfig& config, const Stream& stream) {
  const int64_t rows = LogitsChunkRows(stream);
  int64_t bytes = 2 * RankingPlan::BlockBytes(rows) + kRuleTokens * 4;
  bytes += rows * static_cast<int64_t>(sizeof(RowRules) + sizeof(Draw) + sizeof(BeamDraw) +
                                       sizeof(BeamGroup) + (5 + kMaxEosTokens) * sizeof(int32_t));
  for (const int64_t size : BufferSizes(config, stream)) bytes += size;
  return bytes;
}

absl::Status TokenSearch::Allocate() {
  Buffer* const buffers[] = {
      &topk_scratch_,   &rules_scratch_, &sample_scratch_, &ranked_sums_,  &logits_,
      &kept_,           &scores_,        &biases_,         &log_sums_,     &ranked_,
      &ranked_indices_, &drawn_,         &ranked_logits_,  &drawn_logits_, &top_,
      &top_indices_};
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
  for (RankingPlan* plan : {&plan_, &alternatives_plan_}) status.Update(plan->Allocate(most_rows_));
  status.Update(rules_.Allocate(most_rows_));
  status.Update(rule_tokens_.Allocate(kRuleTokens));
  status.Update(draws_.Allocate(most_rows_));
  status.Update(beam_draws_.Allocate(most_rows_));
  status.Update(groups_.Allocate(most_rows_));
  status.Update(eos_.Allocate(most_rows_ * kMaxEosTokens));
  for (auto* rows : {&entry_rows_, &entry_kept_, &draw_rows_, &draw_kept_, &carried_}) {
    status.Update(rows->Allocate(most_rows_));
  }
  for (Search& search : searches_) {
    search.parts.reserve(most_rows_);
    search.lanes.reserve(std::max(most_rows_, model_->limits().max_step_sequences));
  }
  return status;
}

Tensor TokenSearch::Matrix(const Buffer& mirrored, DType dtype, int64_t rows,
                           int64_t columns) const {
  return model_->stream().Twin(Tensor::Dense(mirrored.data(), dtype, {rows, columns}));
}

Tensor TokenSearch::Logits(int64_t rows) const {
  return Tensor::F32(logits_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor TokenSearch::Kept(int64_t rows) const {
  return Tensor::F32(kept_.as<float>(), {rows, logits_stride_}).Columns(0, vocab_);
}

Tensor TokenSearch::LogSums(int64_t rows) const {
  return model_->stream().Twin(Tensor::F32(log_sums_.as<float>(), {rows}));
}

Tensor TokenSearch::Scratch(const Buffer& buffer) const {
  return Tensor::Dense(buffer.data(), DType::kI8, {buffer.bytes()});
}

Tensor TokenSearch::Values(const Search& search, int which) const {
  return Tensor::F32(ranked_.as<float>() + EntriesAt(which), {plan_.entries(), search.needs.width});
}

Tensor TokenSearch::Indices(const Search& search, int which) const {
  return Tensor::Dense(ranked_indices_.as<int32_t>() + EntriesAt(which), DType::kI32,
                       {plan_.entries(), search.needs.width});
}

Tensor TokenSearch::RowBiases(const Needs& needs) const {
  return needs.carries ? Tensor::F32(biases_.as<float>(), {most_rows_})
                       : plan_.Args({.biases = true}).row_bias;
}

// The first entry of a search in the results that there are twice.
int64_t TokenSearch::EntriesAt(int which) const { return which * most_rows_ * kMaxRanking; }

absl::Span<const int32_t> TokenSearch::LanesOf(const SearchPart& part, int which) const {
  return absl::MakeConstSpan(searches_[which].lanes)
      .subspan(part.lanes_begin, part.lanes_end - part.lanes_begin);
}

// ---- The plan ----

size_t TokenSearch::Fitting(absl::Span<const Searching> wanted) const {
  int64_t rows = 0, tokens = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Generation& generation = *wanted[i].generation;
    rows += Share(generation);
    tokens += static_cast<int64_t>(generation.rule_tokens().size());
    if (rows <= most_rows_ && tokens <= kRuleTokens) continue;
    QT_CHECK(i > 0);
    return i;
  }
  return wanted.size();
}

void TokenSearch::Plan(absl::Span<const Searching> wanted, int which) {
  Search& search = searches_[which];
  search.parts.clear();
  search.lanes.clear();
  search.rows = 0;
  search.needs = {};
  search.one_lane_a_row = true;
  search.beams = false;
  plan_.Begin();
  rules_.Clear();
  rule_tokens_.Clear();
  draws_.Clear();
  beam_draws_.Clear();
  groups_.Clear();
  for (auto* rows : {&entry_rows_, &entry_kept_, &draw_rows_, &draw_kept_, &eos_, &carried_}) {
    rows->Clear();
  }
  for (const Searching& one : wanted) PlanGeneration(one, &search);
  search.by_row = search.one_lane_a_row && !search.beams;
  search.steps_beams =
      runs_ahead_ && search.one_lane_a_row && search.beams && !search.needs.logprobs;
  // Raw logits are looked up for all entries: all must have some index.
  if (search.needs.logprobs && beam_draws_.size() > 0) search.needs.ranks = true;
  if (search.needs.ranks || search.beams) plan_.Commit();
  rules_.Commit();
  rule_tokens_.Commit();
  draws_.Commit();
  beam_draws_.Commit();
  if (search.needs.carries) carried_.Commit();
  if (search.steps_beams) {
    groups_.Commit();
    eos_.Commit();
  }
  if (!search.needs.logprobs) return;
  for (auto* rows : {&entry_rows_, &entry_kept_, &draw_rows_, &draw_kept_}) rows->Commit();
}

void TokenSearch::PlanGeneration(const Searching& wanted, Search* search) {
  const Generation& generation = *wanted.generation;
  Needs& needs = search->needs;
  const absl::Span<const int32_t> lanes = generation.live();
  const int64_t rows = wanted.ahead ? static_cast<int64_t>(lanes.size()) : generation.rows();
  SearchPart part{.id = wanted.id,
                  .row = static_cast<int32_t>(search->rows),
                  .entry = static_cast<int32_t>(plan_.entries()),
                  .draw = static_cast<int32_t>(draws_.size()),
                  .lanes_begin = static_cast<int32_t>(search->lanes.size())};
  needs.logprobs = needs.logprobs || generation.NeedsLogProbs();
  needs.alternatives = std::max(needs.alternatives, generation.top_logprobs());
  search->beams = search->beams || generation.RankedTogether();
  search->one_lane_a_row = search->one_lane_a_row && rows == static_cast<int64_t>(lanes.size());
  const int64_t length = generation.length() + (wanted.ahead ? 1 : 0);
  const bool ruled = generation.HasRules(length);
  if (ruled) PlanRules(wanted, rows, search->rows, &needs);
  PlanRanking(wanted, rows, &needs);
  if (runs_ahead_) PlanBeamSteps(generation, rows, part);
  if (generation.Draws()) PlanDraws(wanted, lanes, &part);
  if (generation.DrawsTogether()) PlanBeamDraw(wanted, rows, part);
  const int32_t kept = ruled ? 1 : 0;
  for (int64_t entry = part.entry; entry < plan_.entries(); ++entry) {
    entry_rows_.Add(part.row + static_cast<int32_t>(entry - part.entry));
    entry_kept_.Add(kept);
  }
  for (int64_t draw = part.draw; draw < draws_.size(); ++draw) draw_kept_.Add(kept);
  search->lanes.insert(search->lanes.end(), lanes.begin(), lanes.end());
  part.lanes_end = static_cast<int32_t>(search->lanes.size());
  search->rows += rows;
  search->parts.push_back(part);
}

void TokenSearch::PlanRules(const Searching& wanted, int64_t rows, int64_t row, Needs* needs) {
  const Generation& generation = *wanted.generation;
  const int64_t length = generation.length() + (wanted.ahead ? 1 : 0);
  const auto base = static_cast<int32_t>(rule_tokens_.size());
  rule_tokens_.Add(generation.rule_tokens());
  RowRules rules = generation.RulesAt(length, base);
  for (int64_t i = 0; i < rows; ++i) {
    rules.row = static_cast<int32_t>(row + i);
    rules.sequence = wanted.sequence + static_cast<int32_t>(i);
    rules_.Add(rules);
  }
  needs->ruled_sums = needs->ruled_sums || rules.log_softmax != 0;
}

// Rows that are drawn from are ranked, too, where others are, and of drawn candidates only the
// best.
void TokenSearch::PlanRanking(const Searching& wanted, int64_t rows, Needs* needs) {
  const Generation& generation = *wanted.generation;
  const int64_t length = generation.length() + (wanted.ahead ? 1 : 0);
  const int64_t k = std::max<int64_t>(1, generation.RankingSize());
  QT_CHECK_LE(k, kMaxRanking);
  const bool together = generation.RankedTogether();
  const bool log_softmax = together && !generation.HasRules(length);
  const bool carries = together && wanted.ahead;
  const int64_t entries = together ? 1 : rows;
  const int64_t ranked = generation.DrawsTogether() ? 1 : k;
  for (int64_t entry = 0; entry < entries; ++entry) {
    plan_.AddEntry(rows / entries, ranked, log_softmax);
  }
  for (int64_t row = 0; row < rows; ++row) {
    plan_.AddRow(carries ? 0.0f : generation.RowBias(row));
    carried_.Add(carries ? wanted.carried + static_cast<int32_t>(row) : -1);
  }
  needs->carries = needs->carries || carries;
  needs->ranks = needs->ranks || (generation.RankingSize() > 0 && !generation.DrawsTogether());
  needs->together = needs->together || together;
  needs->log_softmax = needs->log_softmax || log_softmax;
  needs->width = std::max(needs->width, k);
}

void TokenSearch::PlanDraws(const Searching& wanted, absl::Span<const int32_t> lanes,
                            SearchPart* part) {
  const bool one_row = !wanted.ahead && wanted.generation->rows() == 1;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const int32_t row = one_row ? 0 : static_cast<int32_t>(i);
    Draw draw = wanted.generation->DrawOf(lanes[i]);
    draw.row = part->row + row;
    draw.lens_at = wanted.sequence + row;
    draws_.Add(draw);
    draw_rows_.Add(draw.row);
  }
}

// What chooses the next tokens in a search with beams; drawn ones of other requests come by row.
void TokenSearch::PlanBeamSteps(const Generation& generation, int64_t rows,
                                const SearchPart& part) {
  if (generation.Draws()) return;
  BeamGroup group{.entry = part.entry, .row = part.row};
  if (generation.RankedTogether()) {
    group.beams = static_cast<int32_t>(rows);
    group.eos_begin = static_cast<int32_t>(eos_.size());
    eos_.Add(generation.eos_tokens());
    group.eos_end = static_cast<int32_t>(eos_.size());
    return groups_.Add(group);
  }
  for (int64_t row = 0; row < rows; ++row, ++group.entry, ++group.row) groups_.Add(group);
}

void TokenSearch::PlanBeamDraw(const Searching& wanted, int64_t rows, const SearchPart& part) {
  BeamDraw draw{.draw = wanted.generation->DrawOf(0),
                .rows = static_cast<int32_t>(rows),
                .entry = part.entry,
                .k = static_cast<int32_t>(wanted.generation->RankingSize())};
  draw.draw.row = part.row;
  draw.draw.lens_at = wanted.sequence;
  beam_draws_.Add(draw);
}

// ---- The search ----

void TokenSearch::Queue(const Tensor& states, int which) {
  const Search& search = searches_[which];
  QT_CHECK_EQ(states.dim[0], search.rows);
  const bool records = model_->stream().backend() != Backend::kCpu && ChoosesHere(which) &&
                       search.rows > 0 && !search.needs.logprobs && search.needs.alternatives == 0;
  if (records) {
    RunRecorded(states, which);
  } else {
    QueueOps(states, which);
  }
  model_->stream().Mark(which);
}

void TokenSearch::QueueStep(const DecodeBatch& batch, int which) {
  const Search& search = searches_[which];
  const Needs& needs = search.needs;
  const bool joins = search.by_row && search.rows > 0 && !needs.logprobs && needs.alternatives == 0;
  if (!joins) return Queue(model_->Decode(batch), which);
  // What Shape tells of a search without beams, but for where it lies.
  const DecodedStep step = model_->DecodeThen(
      batch, {.key = {id_, which, needs.ranks, needs.width, needs.ruled_sums,
                      rule_tokens_.size() > 0, search.rows, rules_.size(), draws_.size()},
              .queue = [&](const Tensor& states) { QueueOps(states, which); }});
  if (!step.followed) return Queue(step.states, which);
  model_->stream().Mark(which);
}

TokenSearch::Shape TokenSearch::ShapeOf(const Tensor& states, int which) const {
  const Search& search = searches_[which];
  const TokenHistory history = model_->history();
  Shape shape{.which = which,
              .needs = search.needs,
              .rule_tokens = rule_tokens_.size() > 0,
              .rows = search.rows,
              .entries = plan_.entries(),
              .rules = rules_.size(),
              .draws = draws_.size(),
              .slots_stride = history.slots_stride,
              .beam_draws = beam_draws_.size(),
              .states = states.data,
              .slots = history.slots,
              .lens = history.lens.data()};
  if (search.steps_beams) {
    shape.eos = eos_.size() > 0;
    shape.groups = groups_.size();
  }
  for (const BeamDraw& draw : beam_draws_.span()) {
    shape.most_beams = std::max<int64_t>(shape.most_beams, draw.rows);
  }
  return shape;
}

void TokenSearch::RunRecorded(const Tensor& states, int which) {
  constexpr size_t kMostShapes = 1024;
  constexpr int64_t kSeenBefore = 3;
  const Shape shape = ShapeOf(states, which);
  // Batches that change with every step have more shapes than are worth recording.
  auto found = recorded_.find(shape);
  if (found == recorded_.end() && recorded_.size() < kMostShapes) {
    found = recorded_.try_emplace(shape).first;
  }
  if (found == recorded_.end()) return QueueOps(states, which);
  RecordedSearch& recorded = found->second;
  Device& device = model_->stream().device();
  if (recorded.seen++ == kSeenBefore) {
    recorded.graph = device.Record([&] { QueueOps(states, which); });
  }
  if (recorded.graph != nullptr) {
    device.Replay(*recorded.graph);
  } else {
    QueueOps(states, which);
  }
}

void TokenSearch::QueueOps(const Tensor& states, int which) {
  Stream& stream = model_->stream();
  const Search& search = searches_[which];
  const Needs& needs = search.needs;
  if (needs.carries) {
    CarryScores({.scores = Tensor::F32(scores_.as<float>(), {most_rows_}),
                 .known = plan_.Args({.biases = true}).row_bias,
                 .from = carried_.span(),
                 .biases = Tensor::F32(biases_.as<float>(), {most_rows_})},
                stream);
  }
  model_->Logits(states, Logits(search.rows));
  // The sums that the ranking itself takes come in its own reading.
  if (needs.ruled_sums || needs.logprobs) {
    LogSumExp({.logits = Logits(search.rows), .out = LogSums(search.rows)}, stream);
  }
  if (needs.alternatives > 0) FindAlternatives(search);
  if (rules_.size() > 0) ApplyRules(search);
  if (needs.ranks) Rank(search, which);
  if (draws_.size() > 0) DrawTokens(search, which);
  if (beam_draws_.size() > 0) DrawBeams(search, which);
  if (search.steps_beams) StepBeams(search, which);
  if (needs.logprobs) FindLogits(search, which);
}

absl::Status TokenSearch::Wait(int which) {
  status_.Update(model_->stream().WaitForMark(which));
  return status_;
}

void TokenSearch::FindAlternatives(const Search& search) {
  RankingPlan& plan = alternatives_plan_;
  plan.Begin();
  for (int64_t row = 0; row < search.rows; ++row) {
    plan.AddEntry(1, search.needs.alternatives, false);
  }
  plan.Commit();
  TopKArgs args = plan.Args({});
  args.scores = Logits(search.rows);
  args.values = Matrix(top_, DType::kF32, search.rows, kMaxAlternatives);
  args.indices = Matrix(top_indices_, DType::kI32, search.rows, kMaxAlternatives);
  args.scratch = Scratch(topk_scratch_);
  TopK(args, model_->stream());
  model_->stream().Download(top_.data(), search.rows * kMaxAlternatives * 4);
  model_->stream().Download(top_indices_.data(), search.rows * kMaxAlternatives * 4);
}

void TokenSearch::ApplyRules(const Search& search) {
  LogitRulesArgs args;
  args.logits = Logits(search.rows);
  args.rules = rules_.span();
  args.tokens = rule_tokens_.span();
  args.history = model_->history();
  if (search.needs.ruled_sums) args.log_sums = LogSums(search.rows);
  if (search.needs.logprobs) args.kept = Kept(search.rows);
  args.scratch = Scratch(rules_scratch_);
  LogitRules(args, model_->stream());
}

void TokenSearch::Rank(const Search& search, int which) {
  Stream& stream = model_->stream();
  const Needs& needs = search.needs;
  TopKArgs args = plan_.Args({.log_softmax = needs.log_softmax});
  if (needs.together) args.row_bias = RowBiases(needs);
  args.scores = Logits(search.rows);
  args.values = Values(search, which);
  args.indices = Indices(search, which);
  args.scratch = Scratch(topk_scratch_);
  if (search.by_row) args.best = model_->chosen();
  if (needs.log_softmax) args.log_sums = Tensor::F32(ranked_sums_.as<float>(), {search.rows});
  TopK(args, stream);
}

void TokenSearch::DrawTokens(const Search& search, int which) {
  const int64_t n = draws_.size();
  SampleArgs args;
  args.logits = Logits(search.rows);
  args.draws = draws_.span();
  args.lens = model_->history().lens;
  args.tokens = Tensor::Dense(drawn_.as<int32_t>() + which * most_rows_, DType::kI32, {n});
  if (ChoosesHere(which)) args.chosen = model_->chosen();
  args.scratch = Scratch(sample_scratch_);
  Sample(args, model_->stream());
}

// In place of what the ranking found for them.
void TokenSearch::DrawBeams(const Search& search, int which) {
  SampleBeamsArgs args;
  args.logits = Logits(search.rows);
  args.row_bias = RowBiases(search.needs);
  args.draws = beam_draws_.span();
  args.lens = model_->history().lens;
  args.values = Values(search, which);
  args.indices = Indices(search, which);
  args.scratch = Scratch(sample_scratch_);
  SampleBeams(args, model_->stream());
}

void TokenSearch::StepBeams(const Search& search, int which) {
  BeamStep({.values = Values(search, which),
            .indices = Indices(search, which),
            .vocab = vocab_,
            .groups = groups_.span(),
            .eos = eos_.span(),
            .tokens = model_->chosen(),
            .parents = model_->parents(),
            .scores = Tensor::F32(scores_.as<float>(), {most_rows_})},
           model_->stream());
}

// Raw logits of what was chosen.
void TokenSearch::FindLogits(const Search& search, int which) {
  Stream& stream = model_->stream();
  CandidateLogitsArgs args;
  args.logits = Logits(search.rows);
  args.kept = Kept(search.rows);
  if (search.needs.ranks) {
    args.first_rows = entry_rows_.span();
    args.from_kept = entry_kept_.span();
    args.indices = Indices(search, which);
    args.values = Tensor::F32(ranked_logits_.as<float>(), {plan_.entries(), search.needs.width});
    CandidateLogits(args, stream);
  }
  if (draws_.size() > 0) {
    args.first_rows = draw_rows_.span();
    args.from_kept = draw_kept_.span();
    const int32_t* drawn = drawn_.as<int32_t>() + which * most_rows_;
    args.indices = Tensor::Dense(drawn, DType::kI32, {draws_.size(), 1});
    args.values = Tensor::F32(drawn_logits_.as<float>(), {draws_.size(), 1});
    CandidateLogits(args, stream);
  }
  stream.Download(log_sums_.data(), search.rows * 4);
}

// ---- The results ----

RowResults TokenSearch::ResultsOf(const Chosen& chosen, int which) const {
  const SearchPart& part = *chosen.part;
  const int64_t width = searches_[which].needs.width, row = part.row;
  const int64_t at = part.entry * width;
  RowResults results;
  results.lanes = LanesOf(part, which);
  results.ranked = ranked_.as<float>() + EntriesAt(which) + at;
  results.ranked_indices = ranked_indices_.as<int32_t>() + EntriesAt(which) + at;
  results.ranked_logits = ranked_logits_.as<float>() + at;
  if (chosen.generation->Draws()) {
    results.tokens = drawn_.as<int32_t>() + which * most_rows_ + part.draw;
    results.token_logits = drawn_logits_.as<float>() + part.draw;
    results.token_stride = 1;
  } else {
    results.tokens = results.ranked_indices;
    results.token_logits = results.ranked_logits;
    results.token_stride = width;
  }
  results.log_sums = log_sums_.as<float>() + row;
  results.top = top_.as<float>() + row * kMaxAlternatives;
  results.top_indices = top_indices_.as<int32_t>() + row * kMaxAlternatives;
  results.top_stride = kMaxAlternatives;
  return results;
}

void TokenSearch::Select(absl::Span<const Chosen> chosen, int which) {
  const auto select = [&](int64_t task) {
    chosen[task].generation->TakeStep(ResultsOf(chosen[task], which));
  };
  const auto tasks = static_cast<int64_t>(chosen.size());
  // To take a token takes less than to wake a thread.
  if (searches_[which].beams) {
    model_->stream().pool().ParallelFor(tasks, [&](int64_t task, int) { select(task); });
  } else {
    for (int64_t task = 0; task < tasks; ++task) select(task);
  }
}

}  // namespace quintet
