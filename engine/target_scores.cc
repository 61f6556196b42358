#include "engine/target_scores.h"

#include <algorithm>
#include <initializer_list>
#include <new>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace quintet {

int64_t TargetScores::BufferBytes(const ModelLimits& limits) {
  return limits.max_step_tokens * 4 * (2 + 2 * kMaxTopLogProbs);
}

absl::Status TargetScores::Allocate() {
  const int64_t bytes = model_->limits().max_step_tokens * 4;
  const std::pair<Buffer*, int64_t> buffers[] = {{&targets_, bytes},
                                                 {&log_probs_, bytes},
                                                 {&top_, bytes * kMaxTopLogProbs},
                                                 {&top_tokens_, bytes * kMaxTopLogProbs}};
  for (const auto& [buffer, size] : buffers) {
    QT_ASSIGN_OR_RETURN(*buffer, model_->stream().AllocatePinned(size));
  }
  rows_.reserve(static_cast<size_t>(model_->limits().max_step_tokens));
  return absl::OkStatus();
}

void TargetScores::Add(int32_t token, int64_t alternatives, ScoredTarget* to, bool* out_of_memory) {
  QT_CHECK_LT(rows(), model_->limits().max_step_tokens);
  rows_.push_back({token, alternatives, to, out_of_memory});
}

absl::Status TargetScores::Score(const Tensor& states) {
  if (rows_.empty()) return absl::OkStatus();
  Stream& stream = model_->stream();
  const int64_t count = rows();
  QT_CHECK_EQ(states.dim[0], count);
  int64_t top = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    targets_.as<int32_t>()[i] = rows_[i].token;
    top = std::max(top, rows_[i].alternatives);
  }
  top = std::min(top, model_->config().vocab);
  stream.CopyH2D(targets_.data(), count * 4);
  const auto on_device = [&stream](const Buffer& b, DType dtype,
                                   std::initializer_list<int64_t> dims) {
    return stream.DeviceTensor(Tensor::Dense(b.data(), dtype, dims));
  };
  Tensor top_log_probs, top_tokens;
  if (top > 0) {
    top_log_probs = on_device(top_, DType::kF32, {count, top});
    top_tokens = on_device(top_tokens_, DType::kI32, {count, top});
  }
  model_->TargetLogProbs(states, Tensor::Dense(targets_.data(), DType::kI32, {count}),
                         on_device(log_probs_, DType::kF32, {count}), top_log_probs, top_tokens);
  stream.CopyD2H(log_probs_.data(), count * 4);
  stream.CopyD2H(top_.data(), count * top * 4);
  stream.CopyD2H(top_tokens_.data(), count * top * 4);
  const absl::Status status = stream.Synchronize();
  if (status.ok()) Record(top);
  rows_.clear();
  return status;
}

void TargetScores::Record(int64_t top) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    try {
      RecordRow(i, top);
    } catch (const std::bad_alloc&) {
      *rows_[i].out_of_memory = true;
    }
  }
}

void TargetScores::RecordRow(size_t i, int64_t top) {
  TokenLogProb scored{rows_[i].token, log_probs_.as<float>()[i], {}};
  const int64_t first = static_cast<int64_t>(i) * top;
  for (int64_t k = first; k < first + std::min(rows_[i].alternatives, top); ++k) {
    scored.alternatives.emplace_back(top_tokens_.as<int32_t>()[k], top_.as<float>()[k]);
  }
  rows_[i].to->total += scored.log_prob;
  rows_[i].to->tokens.push_back(std::move(scored));
}

}  // namespace quintet
