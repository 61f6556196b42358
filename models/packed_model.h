// What the forward passes of all families share: the packed weights, the pages of keys and values,
// the workspace carved once at load, the rows of a decoder call, and the heads on top of the final
// norm. T5 and GPT-2 (models/t5.cc, models/gpt2.cc) add their layers. Not thread safe, like every
// Model.
#pragma once

#include <memory>

#include "models/model.h"
#include "models/weights.h"

namespace quintet {

class PackedModel : public Model {
 public:
  void Logits(const Tensor& states, const Tensor& logits) override;
  void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                      const Tensor& top_log_probs, const Tensor& top_tokens) override;
  void Classify(const Tensor& states, const Tensor& logits) override;

  // Sizes pages and workspace for the limits: memory() holds them then. RESOURCE_EXHAUSTED when
  // they do not fit 64 bits.
  absl::Status Measure();
  // Measures and allocates; once, before any other call. RESOURCE_EXHAUSTED when the system has no
  // such memory.
  absl::Status Allocate();

 protected:
  PackedModel(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
              ThreadPool* pool);

  // Rows of one block: what FFNs and other wide intermediates are sized for when a call has more
  // rows than that.
  static constexpr int64_t kBlockRows = 256;

  // Takes the workspace's pieces; runs twice, first without memory to add up its size. Families add
  // theirs.
  virtual void Carve(Carver& carver);
  // Scratch of one product of up to `rows` rows; 0 when the model has no such weight.
  int64_t ProductScratchBytes(const LinearWeight& w, int64_t rows) const;

  // y = epilogue(alpha * x W^T + bias), with the model's scratch.
  void Product(LinearArgs args);
  // Checks the batch against the limits and notes position and slot of every new row.
  void ArrangeRows(const DecodeBatch& batch);
  // Causal self-attention of the new rows: stores their keys and values, then every row attends to
  // its sequence so far. qkv [rows, 3 I]; returns [rows, I], in place of the queries.
  Tensor SelfAttend(int64_t layer, const DecodeBatch& batch, const Tensor& qkv,
                    const PositionBias* bias, float scale);
  // Copies the wanted rows of x [rows, d_model] to states_ and returns them, [wanted, d_model].
  Tensor GatherWanted(const DecodeBatch& batch, const Tensor& x);

  // Part 0, 1 or 2 (queries, keys or values) of qkv [rows, 3 I], as [rows, heads, head_dim].
  Tensor HeadsOf(const Tensor& qkv, int part) const;

  ModelWeights weights_;
  int64_t block_rows_;  // rows of the widest products: max(kBlockRows, limits.max_step_tokens)

  // A decoder call's rows.
  Tensor x_;          // [max_step_tokens, d_model] residual stream
  Tensor qkv_;        // [max_step_tokens, 3 I]
  Tensor states_;     // [max_step_tokens, d_model]
  Tensor positions_;  // [max_step_tokens] i32
  Tensor new_slots_;  // [max_step_tokens] i32
  // Passing values, of whichever call runs.
  Tensor normed_;   // [block_rows_, d_model]
  Tensor hidden_;   // [block_rows_, d_ff]
  Tensor scratch_;  // [bytes] i8, of ops

 private:
  Buffer pages_;
  Buffer workspace_;
};

}  // namespace quintet
