// A request whose decoder tokens are all given: an encoder-decoder's scores of targets, and states
// for its task heads. Targets prefill_tokens the cache of what precedes them; several are read side
// by side.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/decode_task.h"
#include "engine/kv_pool.h"
#include "engine/request.h"

namespace quintet {

class TeacherForcing : public DecodeTask {
 public:
  // Scores: log-probabilities of each target after `prefix` (not empty). Up to `sequences` targets
  // are read at once. The request's targets outlive the object.
  static TeacherForcing Scoring(std::vector<int32_t> prefix,
                                absl::Span<const std::vector<int32_t>> targets, int64_t sequences,
                                int64_t page_size);
  // States: of decoder tokens, all of them (row < 0) or only that of token `row`.
  static TeacherForcing States(std::vector<int32_t> tokens, int64_t row, int64_t page_size);

  int64_t sequences() const override { return static_cast<int64_t>(sequences_.size()); }
  int64_t pages_needed() const override { return layout_.PagesNeeded(); }
  void AssignPages(absl::Span<const int32_t> pages) override;
  int64_t prefill_tokens_left() const override;
  int64_t generating_rows() const override { return 0; }
  void AddTo(BatchBuilder* batch, int64_t prefill_tokens) override;
  bool done() const override { return items_done_ == items_; }

  bool scores() const { return !targets_.empty(); }
  // Rows output_rows in the step just built, in the batch's order: the target of each and the item
  // it belongs to.
  struct OutputRow {
    int32_t item, target;
  };
  absl::Span<const OutputRow> output_rows() const { return output_rows_; }
  // The step has run: rows are settled, sequences move on to their next targets.
  void Advance();

 private:
  // A sequence under way: which item, and how many of its tokens the model has or will have after
  // this step.
  struct Sequence {
    int64_t item = -1;
    int64_t read = 0;
    std::vector<int32_t> slots;
  };

  TeacherForcing() = default;
  void AddTargetRows(BatchBuilder* batch, Sequence* seq, int64_t prefill_tokens);
  int64_t ItemTokens(int64_t item) const;

  std::vector<int32_t> shared_;  // read once, before any item
  int64_t shared_read_ = 0;
  int32_t first_token_ = 0;      // of every scored item: the last one before its target
  std::vector<int32_t> tokens_;  // of the only item, when states are output_rows
  int64_t row_ = -1;
  absl::Span<const std::vector<int32_t>> targets_;
  int64_t items_ = 0, items_done_ = 0, next_item_ = 0;
  SlotLayout layout_;
  std::vector<Sequence> sequences_;
  std::vector<int32_t> inputs_;  // scratch: a seq's tokens of one step
  std::vector<OutputRow> output_rows_;
};

}  // namespace quintet
