// One generating request: its sequences (samples or beams) with their tokens and cache slots, and
// how a step's results extend them. Subclasses: independent sequences (engine/sampled_generation.h)
// and beams (engine/beam_generation.h). Beams are reordered by copying their slot tables (the KV
// cache slot of each position); keys and values are never copied. Not thread safe.
//
// A sequence has a fixed index `seq`. A sequence is live until it ends. In a step, each live
// sequence has one row of hidden states; but in the step that prefills the last prompt token, when
// all sequences are still equal, they share one row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/decode_task.h"
#include "engine/kv_pool.h"
#include "engine/logits_processors.h"
#include "engine/request.h"
#include "kernels/sampling/sampling.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Results of one step for one generation, in host memory.
struct RowResults {
  // If the request uses no beam search: sequences[i] is a sequence index, tokens[i * token_stride]
  // is its next token and, if wants_logprobs, token_logits[i * token_stride] is that token's raw
  // logit. Sequences that ended after the step was enqueued still have an entry.
  std::span<const int32_t> sequences;
  const int32_t* tokens = nullptr;
  const float* token_logits = nullptr;
  int64_t token_stride = 0;
  // Beam search: TopKSize() candidates of all beams together, best first; in beam sampling, in the
  // order in which they were drawn. A candidate's score includes the running score of its beam. Its
  // index is row * vocab + token; after the last candidate all indices are -1. candidate_logits
  // (raw logits) is set only if wants_logprobs.
  const float* candidate_scores = nullptr;
  const int32_t* candidate_indices = nullptr;
  const float* candidate_logits = nullptr;
  // Set only if wants_logprobs, for each row: log-sum-exp of the raw logits, and the top_logprobs
  // most likely tokens with their raw logits. Row i of top_logits and top_tokens begins at i *
  // top_stride.
  const float* log_sums = nullptr;
  const float* top_logits = nullptr;
  const int32_t* top_tokens = nullptr;
  int64_t top_stride = 0;
};

class Generation : public DecodeTask {
 public:
  // `request` (with resolved options) and `tokenizer` (may be null) must outlive the object.
  static std::unique_ptr<Generation> Create(const Request& request, const Tokenizer* tokenizer,
                                            int64_t vocab, int64_t page_size);

  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  int64_t sequences() const override { return num_sequences_; }
  void AssignPages(std::span<const int32_t> pages) override;
  int64_t prefill_tokens_left() const override { return prompt_len_ - prefilled_; }
  int64_t generating_rows() const override;
  void AddTo(BatchBuilder* batch, int64_t prefill_tokens) override;
  bool done() const override { return done_; }

  // Whether the device alone can choose the next tokens of this generation; the next step can then
  // be enqueued before the host has read the results of the current one. False before the whole
  // prompt is prefilled; with log-probabilities, which the host computes; and for beams with stop
  // strings, because only the host finds stop strings, and it must end a beam before the next
  // top-k.
  bool SelectsOnDevice() const { return DeviceCanSelect() && ReadyToSelect(); }
  // Whether the step in flight chooses the last token of each sequence of this generation, because
  // max_new_tokens is then reached.
  bool LastTokenInFlight() const { return length_ + 1 >= max_len_; }
  // For a generation (request) that is in the step in flight: whether the engine is allowed to put
  // it into the next step, too, if that step is enqueued before the step in flight has finished.
  bool CanScheduleAsync() const { return SelectsOnDevice() && !LastTokenInFlight(); }
  // Whether a generation that is not in the step in flight may join a next step that is enqueued
  // before the step in flight has finished. If it has no new tokens yet, exactly one prompt token
  // must be left to prefill.
  bool CanJoinAsync() const {
    return DeviceCanSelect() && (first_ ? prefill_tokens_left() == 1 : ReadyToSelect());
  }
  // Called once, before the first step, if steps are scheduled asynchronously. Where possible, beam
  // search then starts with all its beams as copies of the prompt; hence its number of rows does
  // not change after the first step.
  virtual void StartFannedOut() {}
  // Prefetches the members that every step reads.
  void Prefetch() const {
    constexpr size_t kLine = 64, kLines = 4;
    for (size_t i = 0; i < kLines; ++i) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + i * kLine);
    }
  }
  // Sets sequence `at` of the batch to sequence `seq` of this generation, in a step that is
  // enqueued before the host knows the sequence's latest token. `token` is -1 - i, which tells the
  // device to take the token from next_tokens()[i] (DecodeBatch::tokens).
  void SetInFlight(BatchBuilder* batch, int64_t at, int32_t seq, int32_t token) const;
  // Sets rows() sequences of the batch, from index `at` on, to the sequences of this generation,
  // which joins a step that is enqueued ahead (CanJoinAsync).
  void Join(BatchBuilder* batch, int64_t at);

  // ---- What the sampler needs to know for the next Select ----
  bool ReadyToSelect() const { return prefilled_ == prompt_len_ && !done_; }
  int64_t rows() const { return first_ ? 1 : static_cast<int64_t>(live_sequences_.size()); }
  // Indices of the live sequences, ascending.
  std::span<const int32_t> live_sequences() const { return live_sequences_; }
  // Number of tokens of a live sequence, prompt included; the same for all live sequences.
  int64_t length() const { return length_; }
  bool wants_logprobs() const { return wants_logprobs_; }
  // HasRules: whether the ApplyLogitsProcessors op has to run for sequences of `length` tokens. It
  // has to if a logits processor changes their logits, and always in beam sampling, where the op
  // turns logits into log-probabilities. RulesAt returns the rules for that op. The token ranges in
  // the rules refer to rule_tokens(), which the caller copies to LogitsProcessorsArgs::tokens from
  // index `base` on.
  bool HasRules(int64_t length) const { return processors_.Acts(length) || SamplesBeams(); }
  RowRules RulesAt(int64_t length, int32_t base) const;
  std::span<const int32_t> rule_tokens() const { return processors_.tokens(); }
  // Whether the logits-processor rules begin by turning a row's raw logits into log-probabilities.
  bool LogitsAreLogProbs(int64_t length) const { return is_beam() && HasRules(length); }
  // SamplesTokens: whether one token is drawn at random for each live sequence. SamplesBeams:
  // whether candidates are drawn at random from the rows of all beams together. DrawFor: the
  // parameters of a draw for sequence `seq`; the caller sets Draw::row and Draw::lens_at.
  bool SamplesTokens() const { return !is_beam() && samples_; }
  bool SamplesBeams() const { return is_beam() && samples_; }
  Draw DrawFor(int32_t seq) const;
  // Length k of the top-k lists that Select reads. Greedy decoding: 1, with one list per row.
  // Sampling: 0, no list. Beam search: the length of its one list, which has candidates from the
  // rows of all beams, ranked together by log-probability + RowBias(row), the running score of the
  // row's beam.
  int64_t TopKSize() const { return top_k_size_; }
  bool RanksBeamsTogether() const { return is_beam(); }
  // Token ids that end a beam.
  std::span<const int32_t> eos_tokens() const { return options_.eos_token_ids; }
  virtual float RowBias(int64_t row) const = 0;
  // Number of new tokens of a live sequence so far; the same for all live sequences.
  int64_t chosen_length() const { return length_ - prompt_len_; }
  int64_t top_logprobs() const { return options_.top_logprobs; }

  // Applies a step's results: every live sequence grows by one token. Threads may call this
  // concurrently for different generations. After a failed allocation out_of_memory() is true and
  // only sequences() and new_tokens() are still valid; the caller then ends the request.
  void ApplyResults(const RowResults& results);
  bool out_of_memory() const { return out_of_memory_; }

  // If the request streams: passes to `sink` the tokens and the text that have been settled (can no
  // longer change) since the previous call of Deliver.
  virtual void Deliver(ResponseSink* sink) = 0;
  // The finished sequences, best first.
  virtual std::vector<GeneratedSequence> TakeSequences() = 0;
  // Number of new tokens of all sequences together. In beam search it is 0 until TakeSequences, and
  // then counts the tokens of the returned sequences only.
  int64_t new_tokens() const { return new_tokens_; }

 protected:
  virtual void Select(const RowResults& results) = 0;
  Generation(const Request& request, const Tokenizer* tokenizer, int64_t sequences, int64_t vocab,
             int64_t page_size);

  bool is_beam() const { return is_beam_; }
  bool DeviceCanSelect() const { return device_can_select_; }
  std::span<const int32_t> History(int64_t seq) const {
    return {tokens_.data() + seq * max_len_, static_cast<size_t>(length_)};
  }
  // Stores the next token of sequence `seq`.
  void Append(int64_t seq, int32_t token) { tokens_[seq * max_len_ + length_] = token; }
  bool IsEos(int32_t token) const;
  // Makes the log-probability entry of a new token. `logit`: the token's raw logit.
  TokenLogProb MakeLogProb(const RowResults& results, int64_t row, int32_t token,
                           float logit) const;
  std::vector<std::pair<int32_t, float>> Alternatives(const RowResults& results, int64_t row) const;
  // Makes the result sequence from the ids `new_tokens`. With the option echo, its ids and its text
  // begin with the prompt.
  GeneratedSequence Present(std::span<const int32_t> new_tokens) const;

  // The members that every step reads come first, in few cache lines, because a step may have
  // thousands of generations. Prefetch loads these lines.
  const bool is_beam_, samples_, wants_logprobs_, device_can_select_;
  bool first_ = true;  // no token chosen yet
  bool done_ = false;
  bool out_of_memory_ = false;
  int64_t length_;         // number of tokens of each live sequence, prompt included
  int64_t prefilled_ = 0;  // prompt tokens prefilled so far
  int64_t new_tokens_ = 0;
  int64_t top_k_size_ = 0;
  int64_t num_sequences_, vocab_, prompt_len_, max_len_;
  std::vector<int32_t> live_sequences_;  // indices, ascending
  std::vector<int32_t> tokens_;          // [sequences, max_len] prompt and new tokens
  // [sequences, max_len] KV cache slot of each position. From position length_ on these are the
  // sequence's own slots. At positions below length_ they may be slots of an earlier beam, whose
  // tokens this sequence continues.
  std::vector<int32_t> slots_;
  LogitsProcessors processors_;

  const Request& request_;
  const DecodingOptions& options_;
  const WarpOptions warp_;
  const Tokenizer* tokenizer_;
  SlotLayout layout_;
};

}  // namespace quintet
