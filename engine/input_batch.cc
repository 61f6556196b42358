#include "engine/input_batch.h"

#include <span>

#include "kernels/base/check.h"

namespace quintet {

void InputBatch::Reserve(int64_t tokens) {
  for (auto* v : {&tokens_, &offsets_, &adapters_, &positions_, &lower_begin_, &upper_end_}) {
    v->reserve(static_cast<size_t>(tokens) + 1);
  }
}

void InputBatch::Clear() {
  for (auto* v : {&tokens_, &offsets_, &adapters_, &positions_, &lower_begin_, &upper_end_})
    v->clear();
  begin_ = 0;
  adapter_ = -1;
  limited_ = both_ways_ = moved_ = false;
}

void InputBatch::Add(std::span<const int32_t> tokens) {
  BeginInput();
  for (const int32_t token : tokens) AddRow(token, rows(), {rows(), SeenBy::kAll});
}

void InputBatch::BeginInput() {
  begin_ = static_cast<int32_t>(tokens_.size());
  QT_CHECK(offsets_.empty() || offsets_.back() < begin_);
  offsets_.push_back(begin_);
  adapters_.push_back(adapter_);
}

void InputBatch::AddRow(int32_t token, int32_t position, SeenBy seen_by) {
  QT_CHECK_LE(seen_by.from, rows());
  limited_ = limited_ || seen_by.until != SeenBy::kAll;
  both_ways_ = both_ways_ || seen_by.from < rows();
  moved_ = moved_ || position != rows();
  tokens_.push_back(token);
  positions_.push_back(position);
  lower_begin_.push_back(seen_by.until);
  upper_end_.push_back(seen_by.from);
}

EncodeBatch InputBatch::Finish() {
  offsets_.push_back(static_cast<int32_t>(tokens_.size()));
  EncodeBatch batch{
      .tokens = tokens_, .offsets = offsets_, .bidirectional = both_ways_, .adapters = adapters_};
  if (moved_) batch.positions = positions_;
  if (limited_) batch.lower_begin = lower_begin_;
  if (both_ways_) batch.upper_end = upper_end_;
  return batch;
}

}  // namespace quintet
