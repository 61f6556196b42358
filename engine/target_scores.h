// Log-probabilities of given tokens after the states before them: what scoring ends in, wherever
// the states come from. Allocated at load. The stepping thread's own.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "kernels/buffer.h"
#include "models/model.h"

namespace quintet {

class TargetScores {
 public:
  // `model` outlives the object.
  explicit TargetScores(Model* model) : model_(model) {}

  static int64_t BufferBytes(const ModelLimits& limits);
  absl::Status Allocate();

  // The next row: the log-probability of `token`, with the `alternatives` most likely ones, goes to
  // the end of `to`; a failed allocation sets *out_of_memory instead. At most the model's
  // max_step_tokens rows.
  void Add(int32_t token, int64_t alternatives, ScoredTarget* to, bool* out_of_memory);
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  // Scores the rows added since the last call, by their states [rows(), d_model], which are the
  // model's. INTERNAL when the device failed.
  absl::Status Score(const Tensor& states);
  // Drops the rows added since the last call of Score.
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
  Buffer targets_, log_probs_;  // [max_step_tokens], mirrored
  Buffer top_, top_tokens_;     // [max_step_tokens, kMaxTopLogProbs], mirrored
};

}  // namespace quintet
