// A request that generates: its sequences (samples or beams), their tokens and cache slots, and
// what becomes of a step's results. Its two kinds are sequences that are independent of each other
// (engine/sampled_generation.h) and beams (engine/beam_generation.h), which move by their slot
// tables; keys and values are never copied. Not thread safe.
//
// A seq is one sequence's place, which it keeps until the end; live_sequences sequences are those
// that still go on. A row is a sequence's row in a step: the first step after the prompt has one
// row for all sequences, since they are equal there.
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

// What a step found for one generation.
struct RowResults {
  // Independent sequences: for each its seq, its next token and, when wants_logprobs, the token's
  // raw logit.
  absl::Span<const int32_t> sequences;
  const int32_t* tokens = nullptr;
  const float* token_logits = nullptr;
  int64_t token_stride = 0;
  // Beams: TopKSize() candidates over all rows, the best or those drawn. Their values include
  // the rows' biases; their raw logits are there when wants_logprobs.
  const float* candidate_scores = nullptr;
  const int32_t* candidate_indices = nullptr;
  const float* candidate_logits = nullptr;
  // When wants_logprobs, by row: log-sum-exp of the raw logits, and their top_logprobs best.
  const float* log_sums = nullptr;
  const float* top_logits = nullptr;
  const int32_t* top_tokens = nullptr;
  int64_t top_stride = 0;
};

class Generation : public DecodeTask {
 public:
  // `request` (its options resolved) and `tokenizer` (or null) outlive the object.
  static std::unique_ptr<Generation> Create(const Request& request, const Tokenizer* tokenizer,
                                            int64_t vocab, int64_t page_size);

  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  int64_t sequences() const override { return num_sequences_; }
  void AssignPages(absl::Span<const int32_t> pages) override;
  int64_t prefill_tokens_left() const override { return prompt_len_ - prefilled_; }
  int64_t generating_rows() const override;
  void AddTo(BatchBuilder* batch, int64_t prefill_tokens) override;
  bool done() const override { return done_; }

  // Whether the device alone can choose its next tokens, so that a step can be queued before the
  // host has seen the one before it. Not with log-probabilities, which the host computes, and not
  // for beams with stop strings, which end beams before the next ranking.
  bool SelectsOnDevice() const { return DeviceCanSelect() && ReadyToSelect(); }
  // The tokens under way are the last ones.
  bool LastTokenInFlight() const { return length_ + 1 >= max_len_; }
  // Takes part in the step under way: whether it can take part in one queued behind that.
  bool CanScheduleAsync() const { return SelectsOnDevice() && !LastTokenInFlight(); }
  // Takes no part in the step under way, so its last tokens are known: the same. It begins there
  // where one given token is left.
  bool CanJoinAsync() const {
    return DeviceCanSelect() && (first_ ? prefill_tokens_left() == 1 : ReadyToSelect());
  }
  // Adds a seq's sequence to such a step; `token` stands for the unknown one
  // (DecodeBatch::tokens).
  void AddInFlight(BatchBuilder* batch, int32_t seq, int32_t token);

  // What the next Select needs.
  bool ReadyToSelect() const { return prefilled_ == prompt_len_ && !done_; }
  int64_t rows() const { return first_ ? 1 : static_cast<int64_t>(live_sequences_.size()); }
  absl::Span<const int32_t> live_sequences() const {
    return live_sequences_;
  }                                           // sequences, ascending
  int64_t length() const { return length_; }  // of every live_sequences history
  bool wants_logprobs() const { return options_.logprobs; }
  // Logits rules for rows whose histories have `length` tokens; their ranges are of rule_tokens(),
  // which begin at entry `base` of LogitRulesArgs::tokens.
  bool HasRules(int64_t length) const { return processors_.Acts(length) || SamplesBeams(); }
  RowRules RulesAt(int64_t length, int32_t base) const;
  absl::Span<const int32_t> rule_tokens() const { return processors_.tokens(); }
  // Whether the rules' first act is to turn logits into log-probabilities.
  bool LogitsAreLogProbs(int64_t length) const { return is_beam() && HasRules(length); }
  // Whether tokens are drawn: one for each live_sequences seq, or (beam sampling) candidates from
  // all rows together. DrawFor leaves `row` and `lens_at` to the caller.
  bool SamplesTokens() const { return !is_beam() && options_.do_sample; }
  bool SamplesBeams() const { return is_beam() && options_.do_sample; }
  Draw DrawFor(int32_t seq) const;
  // Number of ranked candidates that Select reads, 0: none. RanksBeamsTogether: they are ranked
  // over all rows, by log-probability plus the row's bias.
  int64_t TopKSize() const { return top_k_size_; }
  bool RanksBeamsTogether() const { return is_beam(); }
  // Tokens that end beams.
  absl::Span<const int32_t> eos_tokens() const { return options_.eos_token_ids; }
  virtual float RowBias(int64_t row) const = 0;
  // Tokens chosen so far for every live_sequences history: one more with each step it takes part
  // in.
  int64_t chosen_length() const { return length_ - prompt_len_; }
  int64_t top_logprobs() const { return options_.top_logprobs; }

  // Takes a step's results: its sequences grow by one token. Thread safe for different generations.
  // After a failed allocation out_of_memory() holds, and only sequences() and new_tokens() are
  // still valid: the request has to end.
  void ApplyResults(const RowResults& results);
  bool out_of_memory() const { return out_of_memory_; }

  // Streaming requests: hands the sink the text that is new and final since the last call.
  virtual void Deliver(ResponseSink* sink) = 0;
  // The finished sequences, best first.
  virtual std::vector<GeneratedSequence> TakeSequences() = 0;
  // Tokens delivered so far, all sequences together; beams count when they are final.
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
  // Writes the next token of a seq and the slot its keys will have.
  void Append(int64_t seq, int32_t token);
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
  int64_t num_sequences_, vocab_, prompt_len_, max_len_;
  SlotLayout layout_;
  int64_t top_k_size_ = 0;

  int64_t prefilled_ = 0;  // tokens of the prompt that the model has
  int64_t length_;         // tokens of every live_sequences history, prompt included
  bool first_ = true;      // nothing chosen yet
  bool done_ = false;
  bool out_of_memory_ = false;
  int64_t new_tokens_ = 0;
  std::vector<int32_t> live_sequences_;  // sequences still going on, ascending
  std::vector<int32_t> tokens_;          // [sequences, max_len] histories
  std::vector<int32_t> slots_;           // [sequences, max_len] where their keys are
};

}  // namespace quintet
