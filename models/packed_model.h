// What the forward passes of all families share: the packed weights, the pages of keys and values,
// the workspace carved once at load, whole inputs in slices (packed_encode.cc), the arrays of a
// decoder call, and the heads on top of the final norm. T5 and GPT-2 (models/t5.cc, models/gpt2.cc)
// add their layers. Not thread safe, like every Model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention_mask.h"
#include "kernels/graph_cache.h"
#include "models/model.h"
#include "models/step_arrays.h"
#include "models/weights.h"

namespace quintet {

class PackedModel : public Model {
 public:
  void BeginEncode(const EncodeBatch& batch) final;
  bool EncodeSlice(int64_t work) final;
  Tensor EncoderStates() const final;
  Tensor HostEncoderStates() const final;
  Tensor EncodedRows(absl::Span<const int32_t> rows) final;
  Tensor Decode(const DecodeBatch& batch) final;
  DecodedStep DecodeThen(const DecodeBatch& batch, const Following& following) final;
  Tensor chosen() const override { return chosen_; }
  Tensor parents() const override { return parents_; }
  TokenHistory history() const override;
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
  virtual void CarveArrays(Carver& carver);
  // Scratch of one product of up to `rows` rows; 0 when the model has no such weight.
  int64_t ProductScratchBytes(const LinearWeight& w, int64_t rows) const;

  // y = epilogue(alpha * x W^T + bias), with the model's scratch.
  void Product(LinearArgs args);
  // The same of norm(x), x f32: RmsNorm, or LayerNorm where there is a beta. The norm runs on the
  // product's way where it can, otherwise through normed_.
  void NormedProduct(const Tensor& gamma, const Tensor& beta, LinearArgs args);

  // Pieces of a family's layers, over any rows; `positions` [rows] i32.
  // The residual stream x [rows, d_model] of token ids [rows], which are noted in history_ at
  // `slots` [rows], where there are any.
  virtual void EmbedRows(const Tensor& ids, const Tensor& positions,
                         absl::Span<const int32_t> slots, const Tensor& x) = 0;
  // Queries, keys and values of self-attention: qkv [rows, 3 I] of the normed x.
  virtual void ProjectRows(const LayerWeights& w, const Tensor& x, const Tensor& positions,
                           const Tensor& qkv, const KvOutput& kv) = 0;
  // What follows a whole input's self-attention `attended` [rows, I], added to x. `next`: the layer
  // after this one, or null.
  virtual void FinishRows(const LayerWeights& w, const LayerWeights* next, const Tensor& attended,
                          const Tensor& x) = 0;
  // The final norm: y [n, d_model], which may be x, of the rows `rows` of x; empty: of all.
  virtual void NormRows(const StackWeights& stack, const Tensor& x, const Tensor& y,
                        absl::Span<const int32_t> rows) = 0;
  float AttentionScale(int64_t layer) const {
    const float scale = config_.attention_scale;
    return config_.scale_by_inverse_layer ? scale / static_cast<float>(layer + 1) : scale;
  }

  // What a family asks of a batch beyond the limits.
  virtual void CheckBatch(const DecodeBatch& batch) const = 0;
  // One decoder layer over the rows of step_, whose residual stream is x [rows, d_model].
  // Everything it reads of the batch comes from step_.
  virtual void DecoderLayer(int64_t layer, const Tensor& x) = 0;
  // Where the step's new keys and values of a layer go on the way of the product that makes them;
  // unset where it cannot bring them there.
  KvOutput KvOnTheWay(const LinearWeight& qkv, int64_t layer);
  // Causal self-attention of the step's rows: stores their keys and values unless they are
  // `stored`, then every row attends to its sequence so far. qkv [rows, 3 I]; returns [rows, I], in
  // place of the queries.
  Tensor SelfAttend(int64_t layer, const Tensor& qkv, bool stored, const PositionBias* bias,
                    float scale);

  // Part 0, 1 or 2 (queries, keys or values) of qkv [rows, 3 I], as [rows, heads, head_dim].
  Tensor HeadsOf(const Tensor& qkv, int part) const;

  ModelWeights weights_;
  int64_t block_rows_;  // rows of the widest products: max(EncodeBlockRows, max_step_tokens)
  DType activations_;   // type of what passes between ops; the residual stream and states are f32

  // Whole inputs, kept between slices.
  Tensor encoder_host_;       // [max_encode_tokens, d_model] f32, mirrored: the host's side
  Tensor encoder_x_;          // its twin: residual stream, at last the states
  Tensor encoder_qkv_;        // [max_encode_tokens, 3 I]
  Tensor encoder_arrays_;     // [3 max_encode_tokens + 1] i32: those of the batch, one by one
  Tensor encoder_tokens_;     // [rows] i32
  Tensor encoder_positions_;  // [rows] i32
  Tensor encoder_offsets_;    // [sequences + 1] i32
  int64_t encoder_sequences_ = 0;
  int64_t encoder_rows_ = 0;

  // A decoder call's rows.
  StepArrays step_;
  Tensor x_;        // [max_step_tokens, d_model] f32 residual stream
  Tensor qkv_;      // [max_step_tokens, 3 I]
  Tensor states_;   // [max_step_tokens, d_model] f32
  Tensor chosen_;   // [max_step_sequences] i32
  Tensor parents_;  // [max_step_sequences] i32
  Tensor history_;  // [slots of the cache] i32: the id of each slot's token
  // Passing values, of whichever call runs.
  Tensor normed_;   // [block_rows_, d_model]
  Tensor hidden_;   // [block_rows_, d_ff]
  Tensor scratch_;  // [bytes] i8, of ops

 private:
  // Every layer runs in two sweeps over blocks of rows, since attention needs all keys and values
  // first.
  enum class Sweep : uint8_t { kProject, kFinish };

  const StackWeights& InputStack() const {
    return config_.has_encoder() ? weights_.encoder : weights_.decoder;
  }
  void TakeMask(const EncodeBatch& batch);
  bool EncodeByGraph();
  int64_t RowCost() const;
  int64_t SequenceOf(int64_t row) const;
  void ProjectInputRows(int64_t begin, int64_t end);
  void FinishInputRows(int64_t begin, int64_t end);
  void AttendInputRows(int64_t begin, int64_t end);

  StepShape FirstShape() const;
  // Whether a call is recorded: every sequence has one new token, or there are few new ones in all.
  enum class Recording : uint8_t { kNone, kStep, kPrompt };
  // Puts the batch into step_, as if it had the shape that is returned.
  std::pair<StepShape, Recording> Arrange(const DecodeBatch& batch);
  // The decoder over the rows of step_, to the states of the wanted ones in states_.
  void Forward();
  void Run(const StepShape& shape, Recording recording);
  // Captures Forward for any batch of the current shape, or with `these_rows` for any that has the
  // current batch's offsets too.
  std::unique_ptr<DeviceGraph> CaptureForward(bool these_rows);
  void LaunchOrForward(const DeviceGraph* graph);

  // Where the next slice goes on; layer_ == layers of InputStack(): complete.
  int64_t layer_ = 0, row_ = 0;
  Sweep sweep_ = Sweep::kProject;
  bool both_ways_ = false;  // EncodeBatch's
  ColumnMask mask_;         // no columns: there is none

  // CUDA graphs of short encoder batches, by the offsets of their sequences: enqueueing a hundred
  // kernels one by one takes longer than a short input's work. An encoding has two graphs, the
  // first layers and the others: launching a graph takes longer the more nodes it has, and the
  // device starts only then.
  using EncodeGraphs = std::vector<std::unique_ptr<DeviceGraph>>;
  GraphCache<std::vector<int32_t>, EncodeGraphs> encode_graphs_{{.threshold = 1, .capacity = 128}};

  // Query offsets of the sequences in a block of input rows, and the position of each one's first
  // query there.
  Tensor block_offsets_;    // [kBlockRows + 1] i32
  Tensor block_positions_;  // [kBlockRows] i32
  // Causal models: columns of their inputs' mask, its summaries, and the rows of EncodedRows.
  Tensor mask_lower_;  // [max_encode_tokens] i32
  Tensor mask_upper_;  // [max_encode_tokens] i32
  Tensor mask_tiles_;  // [most summaries, 8] i32: MaskTile
  Tensor taken_rows_;  // [max_step_tokens] i32
  // The latest uploads of what belongs to an EncodeBatch, and of taken_rows_.
  int64_t encode_upload_ = 0, taken_upload_ = 0;

  Buffer pages_;
  Buffer workspace_;
  Buffer arrays_;
  // CUDA graphs of decoder calls. The first call of a key is never captured, so that everything
  // that is made on first use exists. Key of a step with one new token per sequence: its shape; of
  // prompts: also the offsets of their sequences and groups.
  GraphCache<StepShape> step_graphs_{{.threshold = 1, .capacity = 256}};
  GraphCache<std::pair<StepShape, std::vector<int32_t>>> prompt_graphs_{
      {.threshold = 1, .capacity = 128}};
  // Steps together with the work that DecodeThen appends, also by its key. Such a capture takes as
  // long as some hundreds of its launches save.
  GraphCache<std::pair<StepShape, std::vector<int64_t>>> joint_graphs_{
      {.threshold = 16, .capacity = 128}};
  const void* captured_block_ = nullptr;  // address of step_'s arrays in these graphs
};

}  // namespace quintet
