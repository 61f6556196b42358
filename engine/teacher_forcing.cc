#include "engine/teacher_forcing.h"

#include <algorithm>
#include <span>

#include "kernels/base/check.h"

namespace quintet {

TeacherForcing TeacherForcing::Scoring(std::vector<int32_t> prefix,
                                       std::span<const std::vector<int32_t>> targets,
                                       int64_t sequences, int64_t page_size) {
  QT_CHECK(!prefix.empty() && !targets.empty());
  TeacherForcing task;
  // The prefix consists of the decoder tokens that precede every target. The targets share the
  // cached keys and values of all these tokens but the last. Each target processes that last token
  // itself, as its own first input token, because the token's hidden state predicts the target's
  // first token.
  task.first_token_ = prefix.back();
  prefix.pop_back();
  task.shared_ = std::move(prefix);
  task.targets_ = targets;
  task.items_ = static_cast<int64_t>(targets.size());
  int64_t longest = 0;
  for (const auto& target : targets) longest = std::max<int64_t>(longest, target.size());
  sequences = std::min(sequences, task.items_);
  task.sequences_.resize(sequences);
  task.layout_ = SlotLayout(task.shared_.size(), longest, sequences, page_size);
  return task;
}

TeacherForcing TeacherForcing::States(std::vector<int32_t> tokens, int64_t row, int64_t page_size) {
  QT_CHECK(!tokens.empty() && row < static_cast<int64_t>(tokens.size()));
  TeacherForcing task;
  task.tokens_ = std::move(tokens);
  task.row_ = row;
  task.items_ = 1;
  task.sequences_.resize(1);
  task.layout_ = SlotLayout(0, task.tokens_.size(), 1, page_size);
  return task;
}

int64_t TeacherForcing::ItemTokens(int64_t item) const {
  return scores() ? static_cast<int64_t>(targets_[item].size())
                  : static_cast<int64_t>(tokens_.size());
}

void TeacherForcing::AssignPages(std::span<const int32_t> pages) {
  layout_.Assign(pages);
  const int64_t shared = static_cast<int64_t>(shared_.size());
  int64_t longest = 0;
  for (int64_t item = 0; item < items_; ++item) longest = std::max(longest, ItemTokens(item));
  for (size_t seq = 0; seq < sequences_.size(); ++seq) {
    sequences_[seq].slots.resize(shared + longest);
    layout_.FillSlots(seq, std::span(sequences_[seq].slots));
    sequences_[seq].item = next_item_++;
  }
  inputs_.reserve(longest);
  output_rows_.reserve(sequences_.size() * static_cast<size_t>(longest));
}

int64_t TeacherForcing::prefill_tokens_left() const {
  const int64_t shared = static_cast<int64_t>(shared_.size());
  if (shared_prefilled_ < shared) return shared - shared_prefilled_;
  int64_t left = 0;
  for (const Sequence& seq : sequences_) {
    if (seq.item >= 0) left += ItemTokens(seq.item) - seq.prefilled;
  }
  return left;
}

void TeacherForcing::AddTo(BatchBuilder* batch, int64_t prefill_tokens) {
  output_rows_.clear();
  const int64_t shared = static_cast<int64_t>(shared_.size());
  if (prefill_tokens > 0 && shared_prefilled_ < shared) {
    batch->AddSequence(
        std::span(shared_).subspan(shared_prefilled_, prefill_tokens),
        {sequences_[0].slots.data(), static_cast<size_t>(shared_prefilled_ + prefill_tokens)});
    shared_prefilled_ += prefill_tokens;
    return;
  }
  for (Sequence& seq : sequences_) {
    if (prefill_tokens == 0 || seq.item < 0) continue;
    const int64_t count = std::min(prefill_tokens, ItemTokens(seq.item) - seq.prefilled);
    AddTargetRows(batch, &seq, count);
    prefill_tokens -= count;
  }
}

void TeacherForcing::AddTargetRows(BatchBuilder* batch, Sequence* seq, int64_t count) {
  const int32_t item = static_cast<int32_t>(seq->item);
  const size_t slots = shared_.size() + seq->prefilled + count;
  inputs_.clear();
  for (int64_t i = seq->prefilled; i < seq->prefilled + count; ++i) {
    if (!scores()) {
      inputs_.push_back(tokens_[i]);
      continue;
    }
    const std::vector<int32_t>& target = targets_[item];
    inputs_.push_back(i == 0 ? first_token_ : target[i - 1]);
    output_rows_.push_back({item, target[i]});
  }
  batch->AddSequence(inputs_, {seq->slots.data(), slots});
  if (scores() || row_ < 0) {
    batch->OutputLast(count);
    if (!scores()) output_rows_.resize(count, {item, 0});
  } else if (row_ >= seq->prefilled && row_ < seq->prefilled + count) {
    batch->OutputToken(row_ - seq->prefilled);
    output_rows_.push_back({item, 0});
  }
  seq->prefilled += count;
}

void TeacherForcing::Advance() {
  for (Sequence& seq : sequences_) {
    if (seq.item < 0 || seq.prefilled < ItemTokens(seq.item)) continue;
    ++items_done_;
    seq.prefilled = 0;
    seq.item = next_item_ < items_ ? next_item_++ : -1;
  }
}

}  // namespace quintet
