// What the forward passes of all families share: the packed weights, the pages of keys and values,
// the workspace carved once at load, the arrays of a decoder call, and the heads on top of the
// final norm. T5 and GPT-2 (models/t5.cc, models/gpt2.cc) add their layers. Not thread safe, like
// every Model.
#pragma once

#include <map>
#include <memory>

#include "models/model.h"
#include "models/step_arrays.h"
#include "models/weights.h"

namespace quintet {

class PackedModel : public Model {
 public:
  Tensor Decode(const DecodeBatch& batch) final;
  Tensor chosen() const override { return chosen_; }
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
              const Stream& stream);

  // Rows of one block: what FFNs and other wide intermediates are sized for when a call has more
  // rows than that. A GPU takes an encoder's rows all at once: only many rows fill it.
  static constexpr int64_t kBlockRows = 256;
  int64_t EncodeBlockRows() const {
    return stream_.backend() == Backend::kCpu ? kBlockRows : limits_.max_encode_tokens;
  }

  // Take the workspace's pieces, and those of mirrored memory for small arrays; they run twice,
  // first without memory to add up the sizes. Families add theirs.
  virtual void Carve(Carver& carver);
  virtual void CarveArrays(Carver& carver) = 0;
  // Scratch of one product of up to `rows` rows; 0 when the model has no such weight.
  int64_t ProductScratchBytes(const LinearWeight& w, int64_t rows) const;

  // y = epilogue(alpha * x W^T + bias), with the model's scratch.
  void Product(LinearArgs args);
  // The same of norm(x), x f32: RmsNorm, or LayerNorm where there is a beta. The norm runs on the
  // product's way where it can, otherwise through normed_.
  void NormedProduct(const Tensor& gamma, const Tensor& beta, LinearArgs args);
  // What a family asks of a batch beyond the limits.
  virtual void CheckBatch(const DecodeBatch& batch) const = 0;
  // The decoder over the rows of step_, to the states of the wanted ones in states_. Everything it
  // reads of the batch comes from step_.
  virtual void Forward() = 0;
  // Where the step's new keys and values of a layer go on the way of the product that makes them;
  // unset where it cannot bring them there.
  KvOutput KvOnTheWay(const LinearWeight& qkv, int64_t layer);
  // Causal self-attention of the step's rows: stores their keys and values unless they are `stored`,
  // then every row attends to its sequence so far. qkv [rows, 3 I]; returns [rows, I], in place of
  // the queries.
  Tensor SelfAttend(int64_t layer, const Tensor& qkv, bool stored, const PositionBias* bias,
                    float scale);
  // Room for the states of the step's wanted rows, [wanted, d_model].
  Tensor WantedStates() const {
    return states_.Rows(0, static_cast<int64_t>(step_.batch().wanted.size()));
  }

  // Part 0, 1 or 2 (queries, keys or values) of qkv [rows, 3 I], as [rows, heads, head_dim].
  Tensor HeadsOf(const Tensor& qkv, int part) const;

  // Work recorded on a device. The first of a shape runs as usual, so that all that is made on first
  // use is there when the second is recorded.
  struct RecordedStep {
    bool seen = false;
    std::unique_ptr<DeviceGraph> graph;
  };

  ModelWeights weights_;
  int64_t block_rows_;  // rows of the widest products: max(EncodeBlockRows, max_step_tokens)
  DType activations_;   // type of what passes between ops; the residual stream and states are f32

  // A decoder call's rows.
  StepArrays step_;
  Tensor x_;       // [max_step_tokens, d_model] f32 residual stream
  Tensor qkv_;     // [max_step_tokens, 3 I]
  Tensor states_;  // [max_step_tokens, d_model] f32
  Tensor chosen_;  // [max_step_sequences] i32
  // Passing values, of whichever call runs.
  Tensor normed_;   // [block_rows_, d_model]
  Tensor hidden_;   // [block_rows_, d_ff]
  Tensor scratch_;  // [bytes] i8, of ops

 private:
  StepShape FirstShape() const;
  void RunRecorded(const StepShape& shape);

  Buffer pages_;
  Buffer workspace_;
  Buffer arrays_;
  std::map<StepShape, RecordedStep> recorded_;
  const void* recorded_block_ = nullptr;  // where step_'s arrays were then
};

}  // namespace quintet
