// One generating request: its sequences (samples or beams) with their tokens and cache slots, and
// how a step's results extend them. Subclasses: independent sequences (engine/sampled_generation.h)
// and beams (engine/beam_generation.h). Beams are reordered by their slot tables; keys and values
// are never copied. Not thread safe.
//
// A sequence has a fixed index `seq`; live sequences have not ended. A row is a sequence's row of
// hidden states in a step. The first step after the prompt has one row for all sequences, which are
// still equal.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/decode_task.h"
#include "engine/kv_pool.h"
#include "engine/logits_processors.h"
#include "engine/request.h"
#include "kernels/sampling/sampling.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Results of one step for one generation, in host memory.
struct RowResults {
  // Independent sequences: for each the sequence index, the next token and, if wants_logprobs, the
  // raw logit of the token. Element i of the two arrays is at i * token_stride.
  absl::Span<const int32_t> sequences;
  const int32_t* tokens = nullptr;
  const float* token_logits = nullptr;
  int64_t token_stride = 0;
  // Beams: TopKSize() candidates over all rows, best first or in the order of sampling. Scores
  // include the row biases (beam scores). The raw logits are set if wants_logprobs.
  const float* candidate_scores = nullptr;
  const int32_t* candidate_indices = nullptr;
  const float* candidate_logits = nullptr;
  // If wants_logprobs, per row: log-sum-exp of the raw logits, and the top_logprobs most likely
  // tokens with their raw logits. Row i of the last two is at i * top_stride.
  const float* log_sums = nullptr;
  const float* top_logits = nullptr;
  const int32_t* top_tokens = nullptr;
  int64_t top_stride = 0;
};

class Generation : public DecodeTask {
 public:
  // `request` (with resolved options) and `tokenizer` (may be null) outlive the object.
  static std::unique_ptr<Generation> Create(const Request& request, const Tokenizer* tokenizer,
                                            int64_t vocab, int64_t page_size);

  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  int64_t sequences() const override { return num_sequences_; }
  void AssignPages(absl::Span<const int32_t> pages) override;
  int64_t prefill_tokens_left() const override { return prompt_len_ - prefilled_; }
  int64_t generating_rows() const override;
  void AddTo(BatchBuilder* batch, int64_t prefill_tokens) override;
  bool done() const override { return done_; }

  // Whether the device alone can choose the next tokens, so that the next step can be enqueued
  // before the host has read this one. False with log-probabilities, which the host computes, and
  // for beams with stop strings, which can end beams before the next top-k.
  bool SelectsOnDevice() const { return DeviceCanSelect() && ReadyToSelect(); }
  // The tokens chosen by the step in flight reach max_new_tokens.
  bool LastTokenInFlight() const { return length_ + 1 >= max_len_; }
  // For a generation in the step in flight: may the next step be enqueued before that one finishes?
  bool CanScheduleAsync() const { return SelectsOnDevice() && !LastTokenInFlight(); }
  // For a generation that is not in the step in flight: may it join the next step? True at the
  // start of decoding when exactly one prompt token is left to prefill.
  bool CanJoinAsync() const {
    return DeviceCanSelect() && (first_ ? prefill_tokens_left() == 1 : ReadyToSelect());
  }
  // Adds sequence `seq` to a step that is enqueued before its latest token is known; `token` says
  // where the device finds that token (DecodeBatch::tokens).
  void AddInFlight(BatchBuilder* batch, int32_t seq, int32_t token);

  // ---- What the sampler needs to know for the next Select ----
  bool ReadyToSelect() const { return prefilled_ == prompt_len_ && !done_; }
  int64_t rows() const { return first_ ? 1 : static_cast<int64_t>(live_sequences_.size()); }
  // Indices of the live sequences, ascending.
  absl::Span<const int32_t> live_sequences() const { return live_sequences_; }
  // Tokens of every live sequence, prompt included.
  int64_t length() const { return length_; }
  bool wants_logprobs() const { return options_.logprobs; }
  // Logits processors as rules, for rows whose histories have `length` tokens. Token ranges refer
  // to rule_tokens(), which the caller places at entry `base` of LogitsProcessorsArgs::tokens.
  bool HasRules(int64_t length) const { return processors_.Acts(length) || SamplesBeams(); }
  RowRules RulesAt(int64_t length, int32_t base) const;
  absl::Span<const int32_t> rule_tokens() const { return processors_.tokens(); }
  // Whether the rules first turn the logits into log-probabilities.
  bool LogitsAreLogProbs(int64_t length) const { return is_beam() && HasRules(length); }
  // Random sampling: SamplesTokens draws one token per live sequence, SamplesBeams draws candidates
  // from all rows together (beam sampling). The caller sets `row` and `lens_at` of DrawFor's
  // result.
  bool SamplesTokens() const { return !is_beam() && options_.do_sample; }
  bool SamplesBeams() const { return is_beam() && options_.do_sample; }
  Draw DrawFor(int32_t seq) const;
  // Number of top-k candidates that Select reads; 0: none. If RanksBeamsTogether, they are ranked
  // over all rows by log-probability plus the row's bias.
  int64_t TopKSize() const { return top_k_size_; }
  bool RanksBeamsTogether() const { return is_beam(); }
  // Tokens that end a beam.
  absl::Span<const int32_t> eos_tokens() const { return options_.eos_token_ids; }
  virtual float RowBias(int64_t row) const = 0;
  // New tokens of every live sequence so far: one more with each of its steps.
  int64_t chosen_length() const { return length_ - prompt_len_; }
  int64_t top_logprobs() const { return options_.top_logprobs; }

  // Applies a step's results: every live sequence grows by one token. Thread safe for different
  // generations. After a failed allocation out_of_memory() is true and only sequences() and
  // new_tokens() are still valid; the caller ends the request.
  void ApplyResults(const RowResults& results);
  bool out_of_memory() const { return out_of_memory_; }

  // Streaming requests: passes text that is new and final since the last call to the sink.
  virtual void Deliver(ResponseSink* sink) = 0;
  // The finished sequences, best first.
  virtual std::vector<GeneratedSequence> TakeSequences() = 0;
  // New tokens of all sequences together; beams count when they are final.
  int64_t new_tokens() const { return new_tokens_; }

 protected:
  virtual void Select(const RowResults& results) = 0;
  Generation(const Request& request, const Tokenizer* tokenizer, int64_t sequences, int64_t vocab,
             int64_t page_size);

  bool is_beam() const { return options_.num_beams > 1; }
  bool DeviceCanSelect() const {
    return !options_.logprobs && (!is_beam() || options_.stop.empty());
  }
  absl::Span<const int32_t> History(int64_t seq) const {
    return {tokens_.data() + seq * max_len_, static_cast<size_t>(length_)};
  }
  // Stores the next token of sequence `seq` and the cache slot of its keys.
  void Append(int64_t seq, int32_t token);
  bool IsEos(int32_t token) const;
  // `logit`: the raw logit of the token.
  TokenLogProb MakeLogProb(const RowResults& results, int64_t row, int32_t token,
                           float logit) const;
  std::vector<std::pair<int32_t, float>> Alternatives(const RowResults& results, int64_t row) const;
  // Text and ids (with the prompt if echo) of a sequence of new tokens.
  GeneratedSequence Present(absl::Span<const int32_t> new_tokens) const;

  const Request& request_;
  const DecodingOptions& options_;
  const WarpOptions warp_;
  const Tokenizer* tokenizer_;
  LogitsProcessors processors_;
  int64_t num_sequences_, vocab_, prompt_len_, max_len_;
  SlotLayout layout_;
  int64_t top_k_size_ = 0;

  int64_t prefilled_ = 0;  // prompt tokens prefilled so far
  int64_t length_;         // tokens of every live sequence, prompt included
  bool first_ = true;      // no token chosen yet
  bool done_ = false;
  bool out_of_memory_ = false;
  int64_t new_tokens_ = 0;
  std::vector<int32_t> live_sequences_;  // indices, ascending
  std::vector<int32_t> tokens_;          // [sequences, max_len] prompt and new tokens
  std::vector<int32_t> slots_;           // [sequences, max_len] cache slot of each token
};

}  // namespace quintet
