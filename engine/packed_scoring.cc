#include "engine/packed_scoring.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/base/check.h"

namespace quintet {

PackedScoring::PackedScoring(std::vector<int32_t> prompt,
                             std::span<const std::vector<int32_t>> targets, AttentionScope scope,
                             int64_t max_tokens)
    : prompt_(std::move(prompt)), targets_(targets), scope_(scope), max_tokens_(max_tokens) {
  QT_CHECK(!prompt_.empty() && !targets_.empty());
  size_t most_predictions = 0;
  for (int64_t begin = 0; begin < static_cast<int64_t>(targets_.size());) {
    int64_t tokens = 0;
    const int64_t end = PartEnd(begin, &tokens);
    max_part_tokens_ = std::max(max_part_tokens_, tokens);
    size_t predictions = 0;
    for (; begin < end; ++begin) predictions += targets_[static_cast<size_t>(begin)].size();
    most_predictions = std::max(most_predictions, predictions);
  }
  predictions_.reserve(most_predictions);
}

// Finds the end of the part (the targets of one encoder batch) that begins with target `begin`.
// Returns the index after its last target, and sets *tokens to the number of its input rows. A
// target of n tokens needs n - 1 rows, because its last token is only predicted.
int64_t PackedScoring::PartEnd(int64_t begin, int64_t* tokens) const {
  const int64_t prompt = static_cast<int64_t>(prompt_.size());
  *tokens = 0;
  int64_t end = begin;
  for (; end < static_cast<int64_t>(targets_.size()); ++end) {
    int64_t rows = static_cast<int64_t>(targets_[end].size()) - 1;
    if (end == begin || scope_.window > 0) rows += prompt;
    if (end > begin && *tokens + rows > max_tokens_) break;
    *tokens += rows;
  }
  return end;
}

void PackedScoring::AddTo(InputBatch* batch) {
  int64_t tokens;
  part_end_ = PartEnd(next_, &tokens);
  predictions_.clear();
  int32_t begin = 0;  // first row of the current input, relative to the part
  for (int64_t item = next_; item < part_end_; ++item) {
    if (item == next_ || scope_.window > 0) {
      if (item > next_) begin += batch->rows();
      AddPrompt(batch);
    }
    AddTarget(batch, item, begin + static_cast<int32_t>(prompt_.size()) - 1, begin + batch->rows());
  }
}

void PackedScoring::AddPrompt(InputBatch* batch) const {
  batch->BeginInput();
  for (size_t i = 0; i < prompt_.size(); ++i) {
    const int32_t row = static_cast<int32_t>(i);
    SeenBy seen_by{scope_.prefix_lm ? 0 : row, SeenBy::kAll};
    if (scope_.window > 0) {
      seen_by.until = static_cast<int32_t>(std::min<int64_t>(row + scope_.window, SeenBy::kAll));
    }
    batch->AddRow(prompt_[i], row, seen_by);
  }
}

// Rows count from the first row of the part (the prompt and the targets of one encoder batch).
// prompt_row: row of the prompt's last token. part_row: row of the target's first token.
void PackedScoring::AddTarget(InputBatch* batch, int64_t item, int32_t prompt_row,
                              int32_t part_row) {
  const std::vector<int32_t>& target = targets_[static_cast<size_t>(item)];
  const int32_t prompt = static_cast<int32_t>(prompt_.size());
  const int32_t read = static_cast<int32_t>(target.size()) - 1;
  const int32_t end = batch->rows() + read;
  for (int32_t i = 0; i <= read; ++i) {
    const int32_t row = i == 0 ? prompt_row : part_row + i - 1;
    predictions_.push_back({row, static_cast<int32_t>(item), target[static_cast<size_t>(i)]});
    if (i == read) break;
    SeenBy seen_by{batch->rows(), end};
    if (scope_.window > 0) {
      seen_by.until =
          static_cast<int32_t>(std::min<int64_t>(batch->rows() + scope_.window, SeenBy::kAll));
    }
    batch->AddRow(target[static_cast<size_t>(i)], prompt + i, seen_by);
  }
}

}  // namespace quintet
