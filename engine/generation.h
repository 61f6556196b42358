// A request that generates: its sequences (samples or beams), their tokens and cache slots, and the
// choice of the next token from a step's logits. GreedyOrSampled keeps independent sequences; Beams
// moves them by rewriting slot tables, never keys or values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/decode_task.h"
#include "engine/kv_pool.h"
#include "engine/logits_processors.h"
#include "engine/request.h"
#include "kernels/sampling.h"
#include "models/tokenizer.h"

namespace quintet {

// What the step found for one generation.
struct RowResults {
  // Of sequences that go their own ways, one entry each: whose it is, its next token, and that
  // token's raw logit when NeedsLogProbs.
  absl::Span<const int32_t> lanes;
  const int32_t* tokens = nullptr;
  const float* token_logits = nullptr;
  int64_t token_stride = 0;
  // Of beams: RankingSize() candidates, the best or those drawn, of all rows together with their
  // biases, and their raw logits when NeedsLogProbs.
  const float* ranked = nullptr;
  const int32_t* ranked_indices = nullptr;
  const float* ranked_logits = nullptr;
  // By row: log-sum-exp of the raw logits when NeedsLogProbs, and their top_logprobs best.
  const float* log_sums = nullptr;
  const float* top = nullptr;
  const int32_t* top_indices = nullptr;
  int64_t top_stride = 0;
};

class Generation : public DecodeTask {
 public:
  // `request` (its options resolved) and `tokenizer` (or null) outlive the object.
  static std::unique_ptr<Generation> Create(const Request& request, const Tokenizer* tokenizer,
                                            int64_t vocab, int64_t page_size);

  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  int64_t sequences() const override { return lanes_; }
  void AssignPages(absl::Span<const int32_t> pages) override;
  int64_t given_tokens_left() const override { return prompt_len_ - read_; }
  int64_t generating_rows() const override;
  void AddTo(BatchBuilder* batch, int64_t share) override;
  bool done() const override { return done_; }

  // Sequences whose next tokens the device can choose, with nothing of a step but those, or their
  // candidates, for the host to see. Beams are ended by stop strings before they are ranked again.
  bool RunsAhead() const {
    return !options_.logprobs && (!is_beam() || options_.stop.empty()) && ReadyToSelect();
  }
  // The tokens under way are the last ones.
  bool EndsByLength() const { return length_ + 1 >= max_len_; }
  // Whether the step after the one that is under way can be queued before that one's tokens are
  // known.
  bool CanRunAhead() const { return RunsAhead() && !EndsByLength(); }
  // The same for sequences that are not under way: their last tokens are known.
  bool CanResume() const { return RunsAhead() && !first_; }
  // Adds that step's sequence of a lane; `token` stands for the token under way (DecodeBatch).
  void AddAhead(BatchBuilder* batch, int32_t lane, int32_t token);

  // What the next Select needs. One row right after the prompt, all sequences being equal there.
  bool ReadyToSelect() const { return read_ == prompt_len_ && !done_; }
  int64_t rows() const { return first_ ? 1 : static_cast<int64_t>(live_.size()); }
  absl::Span<const int32_t> live() const { return live_; }  // lanes, ascending
  int64_t length() const { return length_; }                // of every live history
  bool NeedsLogProbs() const { return options_.logprobs; }
  // Rules for rows whose histories have `length` tokens, and the tokens that they are about.
  bool HasRules(int64_t length) const { return processors_.Acts(length) || DrawsTogether(); }
  RowRules RulesAt(int64_t length, int32_t base) const;
  absl::Span<const int32_t> rule_tokens() const { return processors_.tokens(); }
  // Whether the rules turn rows into log-probabilities first.
  bool LogitsAreLogProbs(int64_t length) const { return is_beam() && HasRules(length); }
  // Whether tokens are drawn from rows: one for each live lane, or as candidates of all rows
  // together; `row` and `lens_at` are the caller's.
  bool Draws() const { return !is_beam() && options_.do_sample; }
  bool DrawsTogether() const { return is_beam() && options_.do_sample; }
  Draw DrawOf(int32_t lane) const;
  // Candidates that Select reads; 0: none. RankedTogether: over all rows at once, as
  // log-probabilities.
  int64_t RankingSize() const { return ranking_size_; }
  bool RankedTogether() const { return is_beam(); }
  // Tokens that end beams.
  absl::Span<const int32_t> eos_tokens() const { return options_.eos_token_ids; }
  virtual float RowBias(int64_t row) const = 0;
  // Tokens chosen so far for every live history: one more with each step it takes part in.
  int64_t chosen_length() const { return length_ - prompt_len_; }
  int64_t top_logprobs() const { return options_.top_logprobs; }

  // Takes the next tokens. Different generations may run at once.
  virtual void Select(const RowResults& results) = 0;

  // New stable text since the last call, to the sink of a streaming request. Engine's thread.
  virtual void Deliver(ResponseSink* sink) = 0;
  // The finished sequences, best first.
  virtual std::vector<GeneratedSequence> TakeSequences() = 0;
  // Tokens delivered so far, all sequences together; beams count when they are final.
  int64_t new_tokens() const { return new_tokens_; }

 protected:
  Generation(const Request& request, const Tokenizer* tokenizer, int64_t lanes, int64_t vocab,
             int64_t page_size);

  bool is_beam() const { return options_.num_beams > 1; }
  absl::Span<const int32_t> Lane(int64_t lane) const {
    return {tokens_.data() + lane * max_len_, static_cast<size_t>(length_)};
  }
  // Writes the next token of a lane and the slot its keys will have.
  void Append(int64_t lane, int32_t token);
  bool IsEos(int32_t token) const;
  // `logit`: the token's raw one.
  TokenLogProb MakeLogProb(const RowResults& results, int64_t row, int32_t token,
                           float logit) const;
  std::vector<std::pair<int32_t, float>> Alternatives(const RowResults& results, int64_t row) const;
  // Text, ids with echo, and the reason, for a sequence of new tokens.
  GeneratedSequence Present(absl::Span<const int32_t> new_tokens) const;

  const Request& request_;
  const DecodingOptions& options_;
  const WarpOptions warp_;
  const Tokenizer* tokenizer_;
  LogitsProcessors processors_;
  int64_t lanes_, vocab_, prompt_len_, max_len_;
  SlotLayout layout_;
  int64_t ranking_size_ = 0;

  int64_t read_ = 0;   // tokens of the prompt that the model has
  int64_t length_;     // of every live history, prompt included
  bool first_ = true;  // nothing chosen yet
  bool done_ = false;
  int64_t new_tokens_ = 0;
  std::vector<int32_t> live_;    // lanes still going on, ascending
  std::vector<int32_t> tokens_;  // [lanes, max_len] histories
  std::vector<int32_t> slots_;   // [lanes, max_len] where their keys are
};

}  // namespace quintet
