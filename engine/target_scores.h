// Log-probabilities of target tokens, computed from the hidden states that predict them; the last
// stage of scoring for every model family. Buffers are allocated at load. Used by the stepping
// thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "models/model.h"

namespace quintet {

class TargetScores {
 public:
  // `model` must outlive this object.
  explicit TargetScores(Model* model) : model_(model) {}

  static int64_t BufferBytes(const ModelLimits& limits);
  absl::Status Allocate();

  // Adds a row to be scored by the next Score. That call appends the log-probability of `token` and
  // the `alternatives` most likely tokens to `to`; if an allocation fails, it sets *out_of_memory
  // instead. One Score takes at most max_step_tokens rows.
  void Add(int32_t token, int64_t alternatives, ScoredTarget* to, bool* out_of_memory);
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  // Scores all rows added since the last Score and waits for the device. `states`: the rows' hidden
  // states [rows(), d_model] f32, in the model's memory. INTERNAL when the device failed.
  absl::Status Score(const Tensor& states);
  // Drops all rows added since the last Score.
  void Clear() { rows_.clear(); }

 private:
  struct Row {
    int32_t token;
    int64_t alternatives;
    ScoredTarget* to;
    bool* out_of_memory;
  };
  void Record(int64_t top);
  void RecordRow(size_t i, int64_t top);

  Model* const model_;
  std::vector<Row> rows_;
  Buffer targets_, log_probs_;  // [max_step_tokens] i32, f32; pinned
  Buffer top_, top_tokens_;     // [max_step_tokens, kMaxTopLogProbs] f32, i32; pinned
};

}  // namespace quintet
