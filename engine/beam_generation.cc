#include "engine/beam_generation.h"

#include <algorithm>
#include <limits>
#include <span>

#include "kernels/base/check.h"

namespace quintet {

BeamGeneration::BeamGeneration(const Request& request, const Tokenizer* tokenizer, int64_t vocab,
                               int64_t page_size)
    : Generation(request, tokenizer, request.decoding.num_beams, vocab, page_size) {
  for (const std::string& stop : options_.stop) {
    longest_stop_ = std::max(longest_stop_, stop.size());
  }
  if (!request.stream || options_.num_return_sequences > 1) return;
  shared_ = std::make_unique<TextStream>(
      tokenizer, TextOptions{request.skip_special_tokens, options_.include_stop, options_.stop});
  if (!options_.echo) return;
  for (const int32_t id : options_.prompt) shared_->PushEcho(id);
}

void BeamGeneration::AssignPages(std::span<const int32_t> pages) {
  Generation::AssignPages(pages);
  search_.emplace(options_);
  top_k_size_ = search_->candidates();
  candidates_.reserve(search_->candidates() * num_sequences_);
  hits_.reserve(search_->candidates());
  moved_tokens_.resize(num_sequences_ * max_len_);
  moved_slots_ = slots_;
}

// Treats the only token of the prompt as if a step had chosen it for every beam. The first step
// then has one row per beam, with the running scores 0, -1e9, ..., and takes its candidates from
// all these rows, as Hugging Face's search does. Without this call the first step has a single row,
// and BeamSearch::CompleteFirst adds the candidates of the other beams.
void BeamGeneration::StartFannedOut() {
  if (prompt_len_ != 1 || !DeviceCanSelect() || SamplesBeams()) return;
  prefilled_ = prompt_len_;
  first_ = false;
}

void BeamGeneration::TakeCandidates(const RowResults& results) {
  candidates_.clear();
  for (int64_t k = 0; k < top_k_size_; ++k) {
    const int32_t flat = results.candidate_indices[k];
    if (flat < 0) break;
    BeamCandidate candidate;
    candidate.score = results.candidate_scores[k];
    candidate.beam = static_cast<int32_t>(flat / vocab_);
    candidate.token = static_cast<int32_t>(flat % vocab_);
    if (options_.logprobs) {
      candidate.log_prob = results.candidate_logits[k] - results.log_sums[candidate.beam];
    }
    candidates_.push_back(candidate);
  }
}

bool BeamGeneration::CompletesStop(const BeamCandidate& candidate) const {
  // Detokenizes the last new tokens of the beam: as many tokens as the longest stop string has
  // bytes, plus 8 tokens of context (or all new tokens, if there are fewer).
  const std::span<const int32_t> history = History(candidate.beam);
  const size_t generated = static_cast<size_t>(length_ - prompt_len_);
  const size_t reach = std::min(generated, longest_stop_ + 8);
  std::vector<int32_t> tail(history.end() - reach, history.end());
  const std::string before = tokenizer_->Decode(tail, request_.skip_special_tokens);
  tail.push_back(candidate.token);
  const std::string after = tokenizer_->Decode(tail, request_.skip_special_tokens);
  const size_t from = before.size() > longest_stop_ ? before.size() - longest_stop_ : 0;
  return FindStop(after, from, options_.stop).begin != std::string::npos;
}

Hit BeamGeneration::HitOf(const BeamCandidate& candidate) const {
  if (IsEos(candidate.token)) return Hit::kEos;
  if (longest_stop_ > 0 && CompletesStop(candidate)) return Hit::kStop;
  return length_ + 1 >= max_len_ ? Hit::kLength : Hit::kNone;
}

void BeamGeneration::Select(const RowResults& results) {
  TakeCandidates(results);
  if (options_.logprobs) {
    for (int64_t row = 0; row < num_sequences_; ++row) {
      alternatives_.push_back(row < rows() ? Alternatives(results, row) : Alternative());
    }
  }
  if (first_) {
    search_->CompleteFirst(&candidates_);
    if (options_.logprobs) {  // dead beams are copies of beam 0
      for (int64_t row = 1; row < num_sequences_; ++row) alternatives_[row] = alternatives_[0];
    }
  }
  // The search needs at least one candidate per beam. If the logits processors allow fewer tokens,
  // candidates with score -inf fill the list.
  while (static_cast<int64_t>(candidates_.size()) < num_sequences_) {
    candidates_.push_back({-std::numeric_limits<float>::infinity(), 0, 0, 0.0f});
  }
  hits_.clear();
  for (const BeamCandidate& c : candidates_) hits_.push_back(HitOf(c));
  done_ = !search_->Step(candidates_, hits_);
  ReorderBeams();
  first_ = false;
  ++length_;
}

void BeamGeneration::ReorderBeams() {
  const std::span<const int32_t> parents = search_->parents();
  bool moves = false;
  for (int64_t seq = 0; seq < num_sequences_; ++seq) moves = moves || parents[seq] != seq;
  if (moves) {
    // Keys and values stay in place in the KV cache: only the parent's token list and the parent's
    // table of cache slots are copied to each beam.
    for (int64_t seq = 0; seq < num_sequences_; ++seq) {
      const int64_t from = parents[seq] * max_len_, to = seq * max_len_;
      std::copy_n(tokens_.begin() + from, length_, moved_tokens_.begin() + to);
      std::copy_n(slots_.begin() + from, length_, moved_slots_.begin() + to);
    }
    tokens_.swap(moved_tokens_);
    slots_.swap(moved_slots_);
  }
  for (int64_t seq = 0; seq < num_sequences_; ++seq) Append(seq, search_->tokens()[seq]);
}

void BeamGeneration::Share(std::span<const int32_t> new_tokens) {
  const int64_t count = static_cast<int64_t>(new_tokens.size());
  while (shared_tokens_ < count && !shared_->stopped()) shared_->Push(new_tokens[shared_tokens_++]);
}

void BeamGeneration::Deliver(ResponseSink* sink) {
  if (shared_ == nullptr) return;
  if (!done_) {
    Share(History(0).subspan(prompt_len_, search_->CommonLength(shared_tokens_)));
  } else if (const std::vector<BeamHypothesis> finished = search_->Finished(); !finished.empty()) {
    Share(finished[0].tokens);
    shared_->Finish();
  }
  const TextStream::Chunk chunk = shared_->Take();
  if (!chunk.ids.empty() || !chunk.text.empty()) sink->OnTokens(0, chunk.ids, chunk.text);
}

std::vector<GeneratedSequence> BeamGeneration::TakeSequences() {
  std::vector<GeneratedSequence> sequences;
  for (const BeamHypothesis& h : search_->Finished()) {
    if (static_cast<int32_t>(sequences.size()) == options_.num_return_sequences) break;
    GeneratedSequence sequence = Present(h.tokens);
    sequence.score = h.score;
    switch (h.hit) {
      case Hit::kEos:
        sequence.finish_reason = FinishReason::kEos;
        break;
      case Hit::kStop:
        sequence.finish_reason = FinishReason::kStop;
        break;
      default:
        sequence.finish_reason = FinishReason::kLength;
    }
    if (longest_stop_ > 0 && h.hit == Hit::kStop) {
      const size_t prompt_bytes =
          options_.echo ? tokenizer_->Decode(options_.prompt, request_.skip_special_tokens).size()
                        : 0;
      const StopMatch match = FindStop(sequence.text, prompt_bytes, options_.stop);
      if (match.begin != std::string::npos) {
        sequence.matched_stop = options_.stop[match.which];
        sequence.text.resize(match.begin +
                             (options_.include_stop ? sequence.matched_stop.size() : 0));
      }
    }
    for (size_t i = 0; options_.logprobs && i < h.tokens.size(); ++i) {
      sequence.logprobs.push_back(
          {h.tokens[i], h.log_probs[i], alternatives_[i * num_sequences_ + h.row_beams[i]]});
    }
    new_tokens_ += static_cast<int64_t>(h.tokens.size());
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

}  // namespace quintet
