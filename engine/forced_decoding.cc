#include "engine/forced_decoding.h"

#include <algorithm>

#include "kernels/check.h"

namespace quintet {

ForcedDecoding ForcedDecoding::Scoring(std::vector<int32_t> prefix,
                                       absl::Span<const std::vector<int32_t>> targets,
                                       int64_t lanes, int64_t page_size) {
  QT_CHECK(!prefix.empty() && !targets.empty());
  ForcedDecoding task;
  // The last token of the prefix is read with each target: its state predicts the target's first
  // token.
  task.first_token_ = prefix.back();
  prefix.pop_back();
  task.shared_ = std::move(prefix);
  task.targets_ = targets;
  task.items_ = static_cast<int64_t>(targets.size());
  int64_t longest = 0;
  for (const auto& target : targets) longest = std::max<int64_t>(longest, target.size());
  lanes = std::min(lanes, task.items_);
  task.lanes_.resize(lanes);
  task.layout_ = SlotLayout(task.shared_.size(), longest, lanes, page_size);
  return task;
}

ForcedDecoding ForcedDecoding::States(std::vector<int32_t> tokens, int64_t row, int64_t page_size) {
  QT_CHECK(!tokens.empty() && row < static_cast<int64_t>(tokens.size()));
  ForcedDecoding task;
  task.tokens_ = std::move(tokens);
  task.row_ = row;
  task.items_ = 1;
  task.lanes_.resize(1);
  task.layout_ = SlotLayout(0, task.tokens_.size(), 1, page_size);
  return task;
}

int64_t ForcedDecoding::ItemTokens(int64_t item) const {
  return scores() ? static_cast<int64_t>(targets_[item].size())
                  : static_cast<int64_t>(tokens_.size());
}

void ForcedDecoding::AssignPages(absl::Span<const int32_t> pages) {
  layout_.Assign(pages);
  const int64_t shared = static_cast<int64_t>(shared_.size());
  int64_t longest = 0;
  for (int64_t item = 0; item < items_; ++item) longest = std::max(longest, ItemTokens(item));
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].slots.resize(shared + longest);
    for (int64_t i = 0; i < shared + longest; ++i) lanes_[lane].slots[i] = layout_.Slot(lane, i);
    lanes_[lane].item = next_item_++;
  }
  inputs_.reserve(longest);
  wanted_.reserve(lanes_.size() * static_cast<size_t>(longest));
}

int64_t ForcedDecoding::given_tokens_left() const {
  const int64_t shared = static_cast<int64_t>(shared_.size());
  if (shared_read_ < shared) return shared - shared_read_;
  int64_t left = 0;
  for (const Lane& lane : lanes_) {
    if (lane.item >= 0) left += ItemTokens(lane.item) - lane.read;
  }
  return left;
}

void ForcedDecoding::AddTo(BatchBuilder* batch, int64_t share) {
  wanted_.clear();
  const int64_t shared = static_cast<int64_t>(shared_.size());
  if (share > 0 && shared_read_ < shared) {
    batch->AddSequence(absl::MakeConstSpan(shared_).subspan(shared_read_, share),
                       {lanes_[0].slots.data(), static_cast<size_t>(shared_read_ + share)});
    shared_read_ += share;
    return;
  }
  for (Lane& lane : lanes_) {
    if (share == 0 || lane.item < 0) continue;
    const int64_t count = std::min(share, ItemTokens(lane.item) - lane.read);
    AddLane(batch, &lane, count);
    share -= count;
  }
}

void ForcedDecoding::AddLane(BatchBuilder* batch, Lane* lane, int64_t count) {
  const int32_t item = static_cast<int32_t>(lane->item);
  const size_t slots = shared_.size() + lane->read + count;
  inputs_.clear();
  for (int64_t i = lane->read; i < lane->read + count; ++i) {
    if (!scores()) {
      inputs_.push_back(tokens_[i]);
      continue;
    }
    const std::vector<int32_t>& target = targets_[item];
    inputs_.push_back(i == 0 ? first_token_ : target[i - 1]);
    wanted_.push_back({item, target[i]});
  }
  batch->AddSequence(inputs_, {lane->slots.data(), slots});
  if (scores() || row_ < 0) {
    batch->WantLast(count);
    if (!scores()) wanted_.resize(count, {item, 0});
  } else if (row_ >= lane->read && row_ < lane->read + count) {
    batch->WantToken(row_ - lane->read);
    wanted_.push_back({item, 0});
  }
  lane->read += count;
}

void ForcedDecoding::Advance() {
  for (Lane& lane : lanes_) {
    if (lane.item < 0 || lane.read < ItemTokens(lane.item)) continue;
    ++items_done_;
    lane.read = 0;
    lane.item = next_item_ < items_ ? next_item_++ : -1;
  }
}

}  // namespace quintet
