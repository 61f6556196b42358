#include "engine/batch_builder.h"

#include <algorithm>
#include <span>

#include "kernels/base/check.h"
#include "kernels/runtime/parallel_blocks.h"

namespace quintet {

BatchBuilder::BatchBuilder(const ModelLimits& limits, ThreadPool* pool) : pool_(pool) {
  tokens_.reserve(limits.max_step_tokens);
  output_rows_.reserve(limits.max_step_tokens);
  offsets_.reserve(limits.max_step_sequences + 1);
  kv_lens_.reserve(limits.max_step_sequences);
  adapters_.reserve(limits.max_step_sequences);
  group_offsets_.reserve(limits.max_step_sequences + 1);
  source_lens_.reserve(limits.max_step_sequences);
  slot_rows_.reserve(limits.max_step_sequences);
  moves_.reserve(limits.max_step_sequences);
  source_rows_.reserve(limits.max_step_sequences);
  owners_.reserve(limits.max_step_sequences);
  filled_owners_.reserve(limits.max_step_sequences);
  Clear();
}

void BatchBuilder::Clear() {
  for (auto* v : {&tokens_, &kv_lens_, &output_rows_, &source_lens_, &adapters_}) v->clear();
  adapter_ = -1;
  offsets_.assign(1, 0);
  group_offsets_.assign(1, 0);
  slot_rows_.clear();
  moves_.clear();
  source_rows_.clear();
  owners_.clear();
}

void BatchBuilder::BeginGroup(uint64_t owner, std::span<const int32_t> source_slots) {
  if (source_slots.empty()) return;
  owners_.push_back(owner);
  source_rows_.push_back(source_slots.data());
  source_lens_.push_back(static_cast<int32_t>(source_slots.size()));
  group_offsets_.push_back(group_offsets_.back());
}

void BatchBuilder::AddSequence(std::span<const int32_t> tokens, std::span<const int32_t> slots) {
  QT_CHECK(!tokens.empty() && tokens.size() <= slots.size());
  if (tokens.size() == 1) {
    tokens_.push_back(tokens[0]);  // much faster than inserting a range
  } else {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  offsets_.push_back(static_cast<int32_t>(tokens_.size()));
  kv_lens_.push_back(static_cast<int32_t>(slots.size()));
  slot_rows_.push_back(slots.data());
  adapters_.push_back(adapter_);
  if (!source_rows_.empty()) ++group_offsets_.back();
}

void BatchBuilder::OutputLast(int64_t count) {
  const int64_t total = tokens();
  for (int64_t i = total - count; i < total; ++i) output_rows_.push_back(static_cast<int32_t>(i));
}

void BatchBuilder::OutputToken(int64_t index) {
  output_rows_.push_back(static_cast<int32_t>(offsets_[offsets_.size() - 2] + index));
}

void BatchBuilder::Resize(int64_t sequences, int64_t groups, int64_t moves) {
  for (auto* v : {&tokens_, &kv_lens_, &output_rows_, &adapters_}) v->resize(sequences);
  slot_rows_.resize(sequences);
  offsets_.resize(sequences + 1);
  source_lens_.resize(groups);
  source_rows_.resize(groups);
  owners_.resize(groups);
  group_offsets_.resize(groups + 1);
  moves_.resize(moves);
}

void BatchBuilder::SetGroup(int64_t group, int64_t end, uint64_t owner,
                            std::span<const int32_t> source_slots) {
  owners_[group] = owner;
  source_rows_[group] = source_slots.data();
  source_lens_[group] = static_cast<int32_t>(source_slots.size());
  group_offsets_[group + 1] = static_cast<int32_t>(end);
}

void BatchBuilder::SetAdapters(int64_t begin, int64_t end, int32_t adapter) {
  std::fill(adapters_.begin() + begin, adapters_.begin() + end, adapter);
}

void BatchBuilder::SetSequence(int64_t sequence, int32_t token, std::span<const int32_t> slots) {
  tokens_[sequence] = token;
  offsets_[sequence + 1] = static_cast<int32_t>(sequence + 1);
  kv_lens_[sequence] = static_cast<int32_t>(slots.size());
  slot_rows_[sequence] = slots.data();
  output_rows_[sequence] = static_cast<int32_t>(sequence);
}

DecodeBatch BatchBuilder::Finish() {
  // A group holds the sequences of one request. Removes the groups that are empty because their
  // request got no prefill tokens in this step.
  size_t groups = 0;
  for (size_t g = 0; g < source_rows_.size(); ++g) {
    if (group_offsets_[g] == group_offsets_[g + 1]) continue;
    owners_[groups] = owners_[g];
    source_rows_[groups] = source_rows_[g];
    source_lens_[groups] = source_lens_[g];
    group_offsets_[++groups] = group_offsets_[g + 1];
  }
  owners_.resize(groups);
  source_rows_.resize(groups);
  source_lens_.resize(groups);
  group_offsets_.resize(groups + 1);
  slots_stride_ = kv_lens_.empty() ? 0 : *std::max_element(kv_lens_.begin(), kv_lens_.end());
  slots_.resize(slots_stride_ * kv_lens_.size());
  constexpr int64_t kSequencesPerTask = 512;
  ForEachInBlocks(pool_, sequences(), kSequencesPerTask, [this](int64_t s) {
    std::copy_n(slot_rows_[s], kv_lens_[s], slots_.begin() + s * slots_stride_);
  });
  FillSources();
  DecodeBatch batch;
  batch.tokens = tokens_;
  batch.offsets = offsets_;
  batch.kv_lens = kv_lens_;
  batch.slots = slots_.data();
  batch.slots_stride = slots_stride_;
  batch.moves = moves_;
  batch.output_rows = output_rows_;
  batch.adapters = adapters_;
  if (!source_rows_.empty()) {
    batch.group_offsets = group_offsets_;
    batch.source_slots = sources_.data();
    batch.source_slots_stride = sources_stride_;
    batch.source_lens = source_lens_;
  }
  return batch;
}

void BatchBuilder::FillSources() {
  if (owners_ == filled_owners_) return;
  filled_owners_.clear();  // stays empty if resize below throws
  sources_stride_ =
      source_lens_.empty() ? 0 : *std::max_element(source_lens_.begin(), source_lens_.end());
  sources_.resize(sources_stride_ * source_lens_.size());
  constexpr int64_t kGroupsPerTask = 256;
  ForEachInBlocks(
      pool_, static_cast<int64_t>(source_lens_.size()), kGroupsPerTask, [this](int64_t g) {
        std::copy_n(source_rows_[g], source_lens_[g], sources_.begin() + g * sources_stride_);
      });
  filled_owners_ = owners_;
}

}  // namespace quintet
