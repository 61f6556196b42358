// The part of the forward pass that all families share: packed weights, KV cache pages, the
// workspace, encoding of whole inputs in slices (packed_encode.cc), CUDA graphs of decoder steps,
// and the heads on top of the final norm. A family adds its embedding, its layer and its final
// norm: GPT-2 here (models/gpt2.cc), encoder-decoders through EncoderDecoderModel.
//
// Not thread safe, like every Model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/attention/mask.h"
#include "kernels/runtime/graph_cache.h"
#include "models/model.h"
#include "models/step_arrays.h"
#include "models/weights/weights.h"

namespace quintet {

class PackedModel : public Model {
 public:
  void BeginEncode(const EncodeBatch& batch) final;
  bool EncodeSlice(int64_t work) final;
  Tensor EncodedStates() const final;
  Tensor HostEncoderStates() const final;
  Tensor EncodedRows(absl::Span<const int32_t> rows) final;
  Tensor Decode(const DecodeBatch& batch) final;
  DecodedStep DecodeAndAppend(const DecodeBatch& batch, const AppendedWork& work) final;
  Tensor next_tokens() const override { return next_tokens_; }
  Tensor parent_beams() const override { return parent_beams_; }
  TokenHistory history() const override;
  void Logits(const Tensor& states, const Tensor& logits) override;
  void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                      const Tensor& top_log_probs, const Tensor& top_tokens) override;
  void Classify(const Tensor& states, const Tensor& logits) override;

  // Computes the sizes of cache and workspace for the limits; memory() returns them afterwards.
  // RESOURCE_EXHAUSTED: a size does not fit 64 bits.
  absl::Status Measure();
  // Measures and allocates. Call it once, before any other call. RESOURCE_EXHAUSTED: the system has
  // not enough memory.
  absl::Status Allocate();

 protected:
  PackedModel(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
              const Stream& stream);

  // ---- What a family implements ----

  // One call of a layer: all rows of a decoder step, or a block of rows of a whole input.
  //
  // A layer of a whole input takes two sweeps over the blocks of rows, because attention needs the
  // keys and values of all rows. The first sweep has only `project` set, the second only `finish`.
  // A decoder step has both set.
  struct LayerRows {
    bool step = false;    // a decoder step: keys and values are in the cache; else a whole input
    int64_t layer = 0;    // of the decoder, or of InputStack()
    int64_t begin = 0;    // whole input: index of the block's first row in the input
    Tensor x;             // [rows, d_model] f32, residual stream, updated in place
    Tensor positions;     // [rows] i32
    Tensor qkv;           // [rows, 3 I], I = heads * head_dim
    KvOutput kv;          // cache destination of K and V if the QKV GEMM can store them, else unset
    bool project = true;  // compute qkv
    bool finish = true;   // compute the rest of the layer: attention and feed-forward

    int64_t count() const { return x.dim[0]; }
  };
  // x = embeddings of `ids`. If `slots` is not empty, also writes the id of each row to history_ at
  // the row's slot.
  struct EmbedRows {
    Tensor ids;                       // [rows] i32
    Tensor positions;                 // [rows] i32
    absl::Span<const int32_t> slots;  // [rows] or empty
    Tensor x;                         // [rows, d_model] f32 out
  };
  virtual void Embed(const EmbedRows& rows) = 0;
  // Runs one layer on `rows`.
  virtual void Layer(const LayerRows& rows) = 0;
  // The final norm of `stack`: y[i] = norm(x[rows[i]]), [n, d_model] f32. Empty `rows`: all rows of
  // x, and y may be x. Families without a final norm (post-norm) copy the rows.
  virtual void FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                         absl::Span<const int32_t> rows) = 0;
  // QT_CHECKs what the family requires of a batch beyond the limits.
  virtual void CheckBatch(const DecodeBatch& batch) const = 0;
  // Carve tensors from the workspace, and small index arrays from pinned memory. Both functions run
  // twice, first with a null base to add up the sizes. Overrides call the base class first.
  virtual void Carve(Carver& carver);
  virtual void CarveArrays(Carver& carver);

  // ---- Building blocks of a layer ----

  // y = epilogue(alpha * x W^T + bias), with the model's GEMM scratch.
  void Gemm(LinearArgs args);
  // y = epilogue(alpha * norm(x) W^T + bias), x f32. norm is LayerNorm if `beta` is defined, else
  // RMSNorm. If the GEMM cannot normalise its input itself, a norm op writes norm(x) to normed_
  // first.
  void NormedGemm(const Tensor& gamma, const Tensor& beta, LinearArgs args);
  // Self-attention of `rows`, whose qkv is complete. A decoder step first stores its keys and
  // values in the cache, unless rows.kv is set (then the QKV GEMM has stored them). Returns [rows,
  // I], in place of the queries.
  Tensor SelfAttention(const LayerRows& rows);
  // Q, K or V of qkv [rows, 3 I] as [rows, heads, head_dim].
  enum class QkvPart : uint8_t { kQuery, kKey, kValue };
  Tensor HeadsOf(const Tensor& qkv, QkvPart part) const;

  bool rotary() const { return config_.position == PositionEncoding::kRope; }
  // Scratch of one GEMM of up to `rows` rows, in bytes; 0 if the model does not have the weight.
  int64_t GemmScratchBytes(const LinearWeight& w, int64_t rows) const;

  // Rows per block of a whole input; wide intermediate results are sized for it. On a GPU an input
  // is one block: only many rows fill the device.
  static constexpr int64_t kBlockRows = 256;
  int64_t EncodeBlockRows() const {
    return stream_.backend() == Backend::kCpu ? kBlockRows : limits_.max_encode_tokens;
  }

  ModelWeights weights_;
  int64_t block_rows_;  // most rows of one GEMM: max(EncodeBlockRows, max_step_tokens)
  DType activations_;   // dtype between ops; the residual stream and hidden states are f32

  // The current whole input (BeginEncode), kept between slices.
  Tensor encoder_host_;       // [max_encode_tokens, d_model] f32, pinned host side of encoder_x_
  Tensor encoder_x_;          // [max_encode_tokens, d_model] f32, residual stream, then states
  Tensor encoder_qkv_;        // [max_encode_tokens, 3 I]
  Tensor encoder_arrays_;     // [3 max_encode_tokens + 1] i32: holds the next three
  Tensor encoder_tokens_;     // [encoder_rows_] i32
  Tensor encoder_positions_;  // [encoder_rows_] i32
  Tensor encoder_offsets_;    // [encoder_sequences_ + 1] i32
  int64_t encoder_sequences_ = 0;
  int64_t encoder_rows_ = 0;

  // The current decoder step.
  StepArrays step_;
  Tensor x_;             // [max_step_tokens, d_model] f32, residual stream
  Tensor qkv_;           // [max_step_tokens, 3 I]
  Tensor states_;        // [max_step_tokens, d_model] f32
  Tensor next_tokens_;   // [max_step_sequences] i32
  Tensor parent_beams_;  // [max_step_sequences] i32
  Tensor history_;       // [slots of the cache] i32: id of the token in each slot

  // Intermediate results of the layer call that runs.
  Tensor normed_;   // [block_rows_, d_model]
  Tensor hidden_;   // [block_rows_, d_ff]
  Tensor scratch_;  // [bytes] i8, of ops

 private:
  enum class Sweep : uint8_t { kProject, kFinish };

  // The stack that whole inputs run through: the encoder, or a causal model's layers.
  const StackWeights& InputStack() const {
    return config_.has_encoder() ? weights_.encoder : weights_.decoder;
  }
  float AttentionScale(int64_t layer) const {
    const float scale = config_.attention_scale;
    return config_.scale_by_inverse_layer ? scale / static_cast<float>(layer + 1) : scale;
  }
  void SetMask(const EncodeBatch& batch);
  bool EncodeByGraph();
  int64_t LayerCostPerRow() const;
  int64_t SequenceOf(int64_t row) const;
  void RunInputRows(int64_t begin, int64_t end, Sweep sweep);
  Tensor AttendInput(const LayerRows& rows);
  Tensor AttendStep(const LayerRows& rows);
  KvOutput KvDestination(const LinearWeight& qkv, int64_t layer);

  StepShape InitialShape() const;
  // Which graph cache a decoder call uses. kStep: every sequence has one new token. kPrompt: some
  // have more, and there are few rows in all.
  enum class GraphKind : uint8_t { kNone, kStep, kPrompt };
  // Fills step_ with the batch, padded to the shape that is returned.
  std::pair<StepShape, GraphKind> PrepareStep(const DecodeBatch& batch);
  // Runs the decoder over the rows of step_; the output rows' hidden states go to states_.
  void Forward();
  void ForwardOrLaunch(const StepShape& shape, GraphKind kind);
  // Captures Forward, for any batch of the current shape, or with `same_offsets` for any that also
  // has the current batch's offsets.
  std::unique_ptr<CudaGraph> CaptureForward(bool same_offsets);

  // Progress of the current whole input: layer, first row and sweep of the next block.
  // layer_ == layers of InputStack(): complete.
  int64_t layer_ = 0, row_ = 0;
  Sweep sweep_ = Sweep::kProject;
  bool bidirectional_ = false;  // EncodeBatch::bidirectional of the current input
  ColumnMask mask_;             // of the current input; empty: none

  // CUDA graphs of short whole inputs. Key: the offsets of their sequences. Enqueueing a hundred
  // kernels one by one takes longer than a short input's computation. Each entry has two graphs,
  // the first layers and the others: launching a graph takes longer the more nodes it has, and the
  // device starts only after the launch.
  using EncodeGraphs = std::vector<std::unique_ptr<CudaGraph>>;
  GraphCache<std::vector<int32_t>, EncodeGraphs> encode_graphs_{{.threshold = 1, .capacity = 128}};

  // For attention of a block of input rows: query offsets of the sequences in the block, and the
  // position of each sequence's first query.
  Tensor block_offsets_;    // [kBlockRows + 1] i32
  Tensor block_positions_;  // [kBlockRows] i32
  // Causal models only: mask columns and tile summaries of an input, and the argument of
  // EncodedRows.
  Tensor mask_lower_;   // [max_encode_tokens] i32
  Tensor mask_upper_;   // [max_encode_tokens] i32
  Tensor mask_tiles_;   // [most tiles, 8] i32: MaskTile
  Tensor gather_rows_;  // [max_step_tokens] i32
  // Numbers of the latest H2D copies (Stream::CopyH2D) of an EncodeBatch's arrays and of
  // gather_rows_.
  int64_t encode_upload_ = 0, gather_upload_ = 0;

  Buffer pages_;
  Buffer workspace_;
  Buffer arrays_;

  // CUDA graphs of decoder calls. A key's first call is never captured, so that everything that is
  // created on first use exists before the capture.
  // Steps with one new token per sequence. Key: shape.
  GraphCache<StepShape> step_graphs_{{.threshold = 1, .capacity = 256}};
  // Prompts. Key: shape, and the offsets of sequences and groups.
  GraphCache<std::pair<StepShape, std::vector<int32_t>>> prompt_graphs_{
      {.threshold = 1, .capacity = 128}};
  // Steps together with the work that DecodeAndAppend appends. Key: shape and AppendedWork::key.
  // The threshold is higher because such a capture takes as long as some hundreds of its launches
  // save.
  GraphCache<std::pair<StepShape, std::vector<int64_t>>> joint_graphs_{
      {.threshold = 16, .capacity = 128}};
  const void* captured_block_ = nullptr;  // address of step_'s arrays in these graphs
};

}  // namespace quintet
