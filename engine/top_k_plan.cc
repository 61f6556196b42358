#include "engine/top_k_plan.h"

#include <bit>
#include <cstring>
#include <utility>

#include "kernels/check.h"

namespace quintet {

absl::Status TopKPlan::Allocate(int64_t rows) {
  absl::StatusOr<Buffer> block = stream_->AllocateMirrored(BlockBytes(rows));
  if (!block.ok()) return block.status();
  block_ = *std::move(block);
  rows_ = rows;
  planned_.assign(static_cast<size_t>(BlockBytes(rows) / 4), 0);
  std::memset(block_.data(), 0, static_cast<size_t>(block_.bytes()));
  return absl::OkStatus();
}

void TopKPlan::Begin() {
  entries_ = planned_rows_ = 0;
  planned_[OffsetsAt()] = 0;
}

void TopKPlan::AddEntry(int64_t rows, int64_t k, bool log_softmax) {
  QT_CHECK_LT(entries_, rows_);
  planned_[OffsetsAt() + entries_ + 1] =
      planned_[OffsetsAt() + entries_] + static_cast<int32_t>(rows);
  planned_[KsAt() + entries_] = static_cast<int32_t>(k);
  planned_[LogSoftmaxAt() + entries_] = log_softmax ? 1 : 0;
  ++entries_;
}

void TopKPlan::AddRow(float bias) {
  QT_CHECK_LT(planned_rows_, rows_);
  planned_[BiasesAt() + planned_rows_] = std::bit_cast<int32_t>(bias);
  ++planned_rows_;
}

void TopKPlan::Commit() {
  const auto bytes = static_cast<size_t>(block_.bytes());
  if (std::memcmp(block_.data(), planned_.data(), bytes) == 0) return;
  stream_->WaitForUpload(upload_);
  std::memcpy(block_.data(), planned_.data(), bytes);
  upload_ = stream_->Upload(block_.data(), block_.bytes());
}

TopKArgs TopKPlan::Args(const Terms& terms) const {
  const int32_t* words = block_.as<int32_t>();
  const auto entries = static_cast<size_t>(entries_);
  TopKArgs args;
  args.row_offsets = {words + OffsetsAt(), entries + 1};
  args.k = {words + KsAt(), entries};
  if (terms.log_softmax) args.log_softmax = {words + LogSoftmaxAt(), entries};
  if (terms.biases) {
    const float* biases = block_.as<float>() + BiasesAt();
    args.row_bias = stream_->Twin(Tensor::F32(biases, {planned_rows_}));
  }
  return args;
}

}  // namespace quintet
