#include "engine/top_k_plan.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace quintet {

absl::Status TopKPlan::Allocate(int64_t rows) {
  QT_RETURN_IF_ERROR(words_.Allocate(Words(rows)));
  rows_ = rows;
  words_.Resize(Words(rows));
  return absl::OkStatus();
}

void TopKPlan::Begin(int64_t entries, int64_t rows) {
  QT_CHECK_LE(std::max(entries, rows), rows_);
  entries_ = entries;
  planned_rows_ = rows;
  words_[OffsetsAt()] = 0;
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
