#include "engine/beam_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "kernels/base/check.h"
#include "kernels/sampling/beam_step.h"

namespace quintet {
namespace {

constexpr float kDead = kEosPenalty;  // as on the device (BeamStep)

}  // namespace

BeamSearch::BeamSearch(const DecodingOptions& options)
    : beams_(options.num_beams),
      length_penalty_(options.length_penalty),
      early_stopping_(options.early_stopping),
      max_new_tokens_(options.max_new_tokens) {
  QT_CHECK_LT(beams_, 64);
  const int32_t eos = static_cast<int32_t>(options.eos_token_ids.size());
  candidates_ = std::max(2, 1 + eos) * beams_;
  // The size of the pool of finished hypotheses is the number of beams times the option `patience`.
  // With EarlyStopping::kFirst the search ends when the pool is full.
  pool_size_ = std::max(1, static_cast<int32_t>(std::lround(beams_ * options.patience)));
  scores_.assign(beams_, kDead);
  scores_[0] = 0.0f;
  parents_.assign(beams_, 0);
  tokens_.assign(beams_, 0);
  nodes_.reserve(static_cast<size_t>(max_new_tokens_) * beams_);
  pool_.resize(pool_size_);
  merged_.reserve(pool_size_ + candidates_);
  order_.reserve(candidates_);
}

void BeamSearch::CompleteFirst(std::vector<BeamCandidate>* ranked) const {
  const size_t known = ranked->size();
  const auto possible = std::count_if(ranked->begin(), ranked->end(), [](const BeamCandidate& c) {
    return std::isfinite(c.score);
  });
  if (possible >= candidates_) return;
  for (int32_t beam = 1; beam < beams_; ++beam) {
    for (size_t i = 0; i < known; ++i) {
      BeamCandidate candidate = (*ranked)[i];
      candidate.score += kDead;
      candidate.beam = beam;
      ranked->push_back(candidate);
    }
  }
  std::stable_sort(ranked->begin() + known, ranked->end(),
                   [](const BeamCandidate& a, const BeamCandidate& b) {
                     if (a.score != b.score) return a.score > b.score;
                     return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
                   });
  // Moves all candidates with score -inf to the end. Otherwise beam 0's candidates with score -inf
  // would stay ahead of the other beams' candidates, whose scores are finite (near -1e9).
  std::stable_partition(ranked->begin(), ranked->end(),
                        [](const BeamCandidate& c) { return std::isfinite(c.score); });
  if (static_cast<int64_t>(ranked->size()) > candidates_) ranked->resize(candidates_);
}

bool BeamSearch::Step(std::span<const BeamCandidate> ranked, std::span<const Hit> hits) {
  QT_CHECK_EQ(ranked.size(), hits.size());
  QT_CHECK_GE(static_cast<int32_t>(ranked.size()), beams_);
  QT_CHECK_LT(new_tokens_, max_new_tokens_);
  UpdateFinished(ranked, hits);
  ChooseRunning(ranked, hits);
  ++new_tokens_;
  UpdateOpen();
  const bool all_hit = std::all_of(hits.begin(), hits.end(), [](Hit h) { return h != Hit::kNone; });
  const bool stop = !open_ || all_hit || (early_stopping_ == EarlyStopping::kFirst && PoolFull());
  return !stop;
}

void BeamSearch::ChooseRunning(std::span<const BeamCandidate> ranked, std::span<const Hit> hits) {
  order_.clear();
  for (size_t k = 0; k < ranked.size(); ++k) {
    const float score = hits[k] == Hit::kNone ? ranked[k].score : ranked[k].score + kDead;
    order_.emplace_back(score, static_cast<int32_t>(k));
  }
  std::partial_sort(order_.begin(), order_.begin() + beams_, order_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first > b.first || (a.first == b.first && a.second < b.second);
                    });
  for (int32_t b = 0; b < beams_; ++b) {
    const BeamCandidate& chosen = ranked[order_[b].second];
    scores_[b] = order_[b].first;
    parents_[b] = chosen.beam;
    tokens_[b] = chosen.token;
    nodes_.push_back({chosen.token, chosen.beam, chosen.log_prob});
  }
}

void BeamSearch::UpdateFinished(std::span<const BeamCandidate> ranked, std::span<const Hit> hits) {
  if (!open_ || (early_stopping_ == EarlyStopping::kFirst && PoolFull())) return;
  const size_t eligible = std::min<size_t>(ranked.size(), beams_);
  const auto hits_of_eligible = hits.first(eligible);
  const bool none = std::all_of(hits_of_eligible.begin(), hits_of_eligible.end(),
                                [](Hit h) { return h == Hit::kNone; });
  if (none) return;
  // The length penalty divides by a power of the number of new tokens, which counts the eos but not
  // the prompt.
  const float penalty =
      static_cast<float>(std::pow(static_cast<double>(new_tokens_ + 1), length_penalty_));
  merged_ = pool_;
  for (size_t k = 0; k < eligible; ++k) {
    if (hits[k] == Hit::kNone) continue;
    const BeamCandidate& c = ranked[k];
    // Adds candidate k, which ends its sequence, as a finished hypothesis. A beam that has ended,
    // or does not exist yet, has kDead (-1e9) in its running score, and new tokens only lower it. A
    // score of kDead or less therefore means that the hypothesis continues such a beam: it is dead.
    merged_.push_back({.score = c.score / penalty,
                       .finished = true,
                       .dead = !(c.score > kDead),
                       .hit = hits[k],
                       .step = new_tokens_,
                       .last = {c.token, c.beam, c.log_prob}});
  }
  std::stable_sort(merged_.begin(), merged_.end(),
                   [](const Slot& a, const Slot& b) { return a.score > b.score; });
  std::copy(merged_.begin(), merged_.begin() + pool_size_, pool_.begin());
}

bool BeamSearch::PoolFull() const {
  return std::all_of(pool_.begin(), pool_.end(), [](const Slot& s) { return s.finished; });
}

void BeamSearch::UpdateOpen() {
  // Closes the search once the estimated final score of the best running beam does not exceed the
  // score of the worst hypothesis in the pool. The estimate divides the beam's score by the length
  // penalty of the current length or, with kNever and a positive exponent, of max_new_tokens.
  const bool longest = early_stopping_ == EarlyStopping::kNever && length_penalty_ > 0.0;
  const int64_t length = longest ? max_new_tokens_ : new_tokens_;
  const float best =
      scores_[0] / static_cast<float>(std::pow(static_cast<double>(length), length_penalty_));
  const bool improvable = std::any_of(pool_.begin(), pool_.end(), [best](const Slot& s) {
    return best > (s.finished ? s.score : kDead);
  });
  open_ = open_ && improvable;
}

int64_t BeamSearch::CommonLength(int64_t known) const {
  // Walks the steps backwards. In each step, bit b of `nodes` is set if beam b of that step is part
  // of some running beam or finished sequence.
  uint64_t nodes = (uint64_t{1} << beams_) - 1;
  int64_t shortest = new_tokens_;
  for (const Slot& slot : pool_) {
    if (slot.finished) shortest = std::min(shortest, slot.step);  // its last token is not shared
  }
  for (int64_t step = new_tokens_ - 1; step >= known; --step) {
    for (const Slot& slot : pool_) {
      if (slot.finished && slot.step == step + 1) nodes |= uint64_t{1} << slot.last.parent;
    }
    if (step < shortest && std::has_single_bit(nodes)) return step + 1;
    uint64_t before = 0;
    for (int32_t beam = 0; beam < beams_; ++beam) {
      if (nodes >> beam & 1) before |= uint64_t{1} << nodes_[step * beams_ + beam].parent;
    }
    nodes = before;
  }
  return known;
}

std::vector<BeamHypothesis> BeamSearch::Finished() const {
  const bool any =
      std::any_of(pool_.begin(), pool_.end(), [](const Slot& s) { return s.finished && !s.dead; });
  std::vector<BeamHypothesis> result;
  for (const Slot& slot : pool_) {
    if (!slot.finished || (slot.dead && (any || !result.empty()))) continue;
    BeamHypothesis h;
    h.score = slot.score;
    h.finished = true;
    h.hit = slot.hit;
    const size_t length = static_cast<size_t>(slot.step) + 1;
    h.tokens.resize(length);
    h.log_probs.resize(length);
    h.row_beams.resize(length);
    Node node = slot.last;
    for (int64_t i = slot.step; i >= 0; --i) {
      h.tokens[i] = node.token;
      h.log_probs[i] = node.log_prob;
      h.row_beams[i] = node.parent;
      if (i > 0) node = nodes_[(i - 1) * beams_ + node.parent];
    }
    result.push_back(std::move(h));
  }
  return result;
}

}  // namespace quintet
