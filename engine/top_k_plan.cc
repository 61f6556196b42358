#include "engine/top_k_plan.h"

#include <bit>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace quintet {

absl::Status TopKPlan::Allocate(int64_t rows) {
  QT_RETURN_IF_ERROR(words_.Allocate(Words(rows)));
  rows_ = rows;
  words_.Resize(Words(rows));
  return absl::OkStatus();
}

void TopKPlan::Begin() {
  entries_ = planned_rows_ = 0;
  words_[OffsetsAt()] = 0;
}

void TopKPlan::AddEntry(int64_t rows, int64_t k, bool log_softmax) {
  QT_CHECK_LT(entries_, rows_);
  words_[OffsetsAt() + entries_ + 1] = words_[OffsetsAt() + entries_] + static_cast<int32_t>(rows);
  words_[KsAt() + entries_] = static_cast<int32_t>(k);
  words_[LogSoftmaxAt() + entries_] = log_softmax ? 1 : 0;
  ++entries_;
}

void TopKPlan::AddRow(float bias) {
  QT_CHECK_LT(planned_rows_, rows_);
  words_[BiasesAt() + planned_rows_] = std::bit_cast<int32_t>(bias);
  ++planned_rows_;
}

TopKArgs TopKPlan::Args(const Terms& terms) const {
  const int32_t* words = words_.span().data();
  const auto entries = static_cast<size_t>(entries_);
  TopKArgs args;
  args.row_offsets = {words + OffsetsAt(), entries + 1};
  args.k = {words + KsAt(), entries};
  if (terms.log_softmax) args.log_softmax = {words + LogSoftmaxAt(), entries};
  if (terms.biases) {
    const auto* biases = reinterpret_cast<const float*>(words + BiasesAt());
    args.row_bias = stream_->DeviceTensor(Tensor::F32(biases, {planned_rows_}));
  }
  return args;
}

}  // namespace quintet
