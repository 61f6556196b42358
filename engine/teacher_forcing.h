// Decoder work on given tokens, without generation: teacher-forced scores of an encoder-decoder's
// targets, or hidden states for its task heads. The same decoder tokens, the prefix, precede every
// target, and all targets share the prefix's cached keys and values. Several targets are prefilled
// in parallel. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode_task.h"
#include "engine/kv_pool.h"
#include "engine/request.h"

namespace quintet {

class TeacherForcing : public DecodeTask {
 public:
  // Makes a task that computes the log-probabilities of the tokens of every target, given that
  // `prefix` (not empty, the same for all targets, not part of them) precedes the target. Up to
  // `sequences` targets run in parallel. `targets` must outlive this object.
  static TeacherForcing Scoring(std::vector<int32_t> prefix,
                                std::span<const std::vector<int32_t>> targets, int64_t sequences,
                                int64_t page_size);
  // Makes a task that computes decoder hidden states: of all `tokens` (row < 0), or of tokens[row]
  // only.
  static TeacherForcing States(std::vector<int32_t> tokens, int64_t row, int64_t page_size);

  int64_t sequences() const override { return static_cast<int64_t>(sequences_.size()); }
  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  void AssignPages(std::span<const int32_t> pages) override;
  int64_t prefill_tokens_left() const override;
  int64_t generating_rows() const override { return 0; }
  void AddTo(BatchBuilder* batch, int64_t prefill_tokens) override;
  bool done() const override { return items_done_ == items_; }

  bool scores() const { return !targets_.empty(); }
  // One entry per output row of the step that was built last, in the batch's order. `item`: index
  // of the target to which the row belongs; 0 if the task computes hidden states. `target`: the
  // token that the row predicts; 0 if the task computes hidden states.
  struct OutputRow {
    int32_t item, target;
  };
  std::span<const OutputRow> output_rows() const { return output_rows_; }
  // Must be called after the step has run: counts the targets that are finished and assigns the
  // next targets to the sequences that have become free.
  void Advance();

 private:
  // One of the sequences that run in parallel. item: index of the target that the sequence
  // processes (-1: none is left); in a task for hidden states, item 0 is tokens_. prefilled: how
  // many tokens of the item have been prefilled, including those of the step being built.
  struct Sequence {
    int64_t item = -1;
    int64_t prefilled = 0;
    std::vector<int32_t> slots;
  };

  TeacherForcing() = default;
  void AddTargetRows(BatchBuilder* batch, Sequence* seq, int64_t prefill_tokens);
  int64_t ItemTokens(int64_t item) const;

  std::vector<int32_t> shared_;  // prefix tokens of all items, prefilled once
  int64_t shared_prefilled_ = 0;
  int32_t first_token_ = 0;      // scoring: the input that predicts a target's first token
  std::vector<int32_t> tokens_;  // hidden states: tokens of the only item
  int64_t row_ = -1;
  std::span<const std::vector<int32_t>> targets_;
  int64_t items_ = 0, items_done_ = 0, next_item_ = 0;
  SlotLayout layout_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> inputs_;  // scratch: tokens of one sequence in one step
  std::vector<OutputRow> output_rows_;
};

}  // namespace quintet
