// The part of the forward pass that all families share: packed weights, KV cache pages, the
// workspace, encoding of whole inputs in slices (packed_encode.cc), CUDA graphs of decoder steps,
// and the heads after the final norm. A family adds its embedding, its layer and its final norm:
// GPT-2 as a direct subclass (models/gpt2.cc), encoder-decoders through EncoderDecoderModel.
//
// Not thread safe, like every Model.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/attention/mask.h"
#include "kernels/base/carver.h"
#include "kernels/linear/linear.h"
#include "kernels/ops/norm_sums.h"
#include "kernels/runtime/graph_cache.h"
#include "kernels/runtime/grid_wait_right.h"
#include "models/adapter_pool.h"
#include "models/adapter_ranges.h"
#include "models/merged_weights.h"
#include "models/model.h"
#include "models/step_arrays.h"
#include "models/weights/weights.h"

namespace quintet {

class PackedModel : public Model {
 public:
  std::span<const AdapterHandle> adapters() const final;
  std::vector<AdapterHandle> TakeAdapters() final;
  absl::StatusOr<AdapterHandle> ReadAdapter(const AdapterSource& source) const final;
  SharedWeights weights() const final { return shared_weights_; }
  const AdapterPool* adapter_pool() const final { return adapters_.get(); }
  AdapterSlots* adapter_slots() final { return adapters_ ? &adapters_->slots() : nullptr; }
  void BeginEncode(const EncodeBatch& batch) final;
  bool EncodeSlice(int64_t work) final;
  Tensor EncodedStates() const final;
  Tensor HostEncoderStates() const final;
  bool PoolEncoded(std::span<const PoolSegment> segments) final;
  Tensor EncodedRows(std::span<const int32_t> rows) final;
  Tensor Decode(const DecodeBatch& batch) final;
  DecodedStep DecodeAndAppend(const DecodeBatch& batch, const AppendedWork& work) final;
  Tensor next_tokens() const override { return next_tokens_; }
  Tensor parent_beams() const override { return parent_beams_; }
  TokenHistory history() const override;
  void Logits(const Tensor& states, const Tensor& logits) override;
  void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                      const Tensor& top_log_probs, const Tensor& top_tokens) override;
  void Classify(const Tensor& states, const Tensor& logits) override;

  // Says that another model owns the weights: memory() then counts none.
  void ShareWeights() { memory_.weights = 0; }
  // The dtype of the KV cache: that of the activations, which is the default, or kF8 if these are
  // bf16 or f16. Must be called before Measure and Allocate.
  void set_cache_type(DType type) { cache_.dtype = type; }
  // Loads the adapters in `options`, or with `describe` only their sizes (AdapterPool::Load). Call
  // it before Measure and Allocate.
  absl::Status LoadAdapters(const LoadOptions& options, bool describe);
  // Computes the sizes of KV cache and workspace for limits(); afterwards memory() returns them.
  // RESOURCE_EXHAUSTED: the KV cache's size in bytes does not fit 64 bits.
  absl::Status Measure();
  // Calls Measure and allocates the KV cache and the workspace. Call it once, before any other
  // call. RESOURCE_EXHAUSTED: not enough host or device memory.
  absl::Status Allocate();

 protected:
  PackedModel(ModelConfig config, const ModelLimits& limits, SharedWeights weights,
              const Stream& stream);

  // 0: the model was loaded without adapters.
  int64_t adapter_slot_count() const { return adapters_ ? adapters_->slot_count() : 0; }

  // ---- Functions that each model family implements ----

  // One call of a layer: all rows of a decoder step, or a block of rows of an input batch
  // (EncodeBatch).
  //
  // A layer of an input batch takes two sweeps over all blocks of rows, because attention needs the
  // keys and values of all rows. The first sweep computes queries, keys and values (only `project`
  // is set), the second computes the rest of the layer (only `finish` is set). In a decoder step
  // one call computes the whole layer (both are set).
  struct LayerRows {
    bool step = false;    // decoder step (keys and values in the KV cache); else an input batch
    int64_t layer = 0;    // index of the layer in the decoder or InputStack()
    int64_t begin = 0;    // input batch: index of the block's first row
    Tensor x;             // [rows, d_model] f32, residual stream, updated in place
    Tensor positions;     // [rows] i32
    Tensor qkv;           // [rows, 3 I], I = heads * head_dim
    KvOutput kv;          // cache destination of K and V if the QKV GEMM can store them, else unset
    bool project = true;  // compute qkv
    bool finish = true;   // compute the rest of the layer: attention and feed-forward

    int64_t count() const { return x.dim[0]; }
  };
  // Arguments of Embed, which sets x to the embeddings of `ids`. If `slots` (the KV cache slots of
  // the tokens) is not empty, Embed also sets history_[slots[r]] = ids[r] for each row r. history_
  // holds the id of the token in each KV cache slot; logits processors read it.
  struct EmbedRows {
    Tensor ids;                      // [rows] i32
    Tensor positions;                // [rows] i32
    std::span<const int32_t> slots;  // [rows] or empty
    Tensor x;                        // [rows, d_model] f32 out
  };
  virtual void Embed(const EmbedRows& rows) = 0;
  // Runs one layer on `rows`.
  virtual void Layer(const LayerRows& rows) = 0;
  // Applies the final norm of `stack`: y[i] = norm(x[rows[i]]), y [n, d_model] f32. If `rows` is
  // empty, all rows of x are used and y may alias x. Families without a final norm (post-norm) copy
  // the rows.
  virtual void FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                         std::span<const int32_t> rows) = 0;
  // Aborts (QT_CHECK) if a decoder batch violates a requirement of the family. The caller checks
  // the limits that hold for all families (ModelLimits).
  virtual void CheckBatch(const DecodeBatch& batch) const = 0;
  // Carve sets the addresses of the tensors in the workspace, which is memory of the stream's
  // backend. CarveArrays sets those of the tensors that the host writes or reads (index arrays,
  // encoder_host_), in pinned memory. A Carver splits one block of memory into pieces. If its base
  // is null, it only adds up the sizes of the pieces; both functions are first called in this way
  // to compute how much memory to allocate. Overrides call the base class first.
  virtual void Carve(Carver& carver);
  virtual void CarveArrays(Carver& carver);

  // ---- Building blocks of a layer ----

  // The input from which the LoRA terms of a linear layer are computed: norm(x). norm is the
  // identity if `gamma` is undefined; otherwise it is the norm of NormedGemm.
  struct LayerInputRows {
    Tensor x, gamma, beta;
  };
  // Calls Linear (y = epilogue(alpha * x W^T + bias)) with scratch_ as its scratch memory, and adds
  // the LoRA terms of the rows' adapters (row_adapters_). The LoRA terms are computed from *input
  // or, if it is null, from args.x with the norm args.norm_gamma and args.norm_beta.
  void Gemm(LinearArgs args, const LayerInputRows* input = nullptr);
  // Whether Gemm(args) passes the LoRA terms to the GEMM as row_bias, because an activation follows
  // them and the GEMM cannot compute them itself (SupportsLora). If so, args must not have a norm
  // of x (LinearArgs::norm_gamma, x_squares).
  bool CorrectsBeforeActivation(const LinearArgs& args);
  // Whether merged_ holds the adapter in `slot` (-1: none).
  bool Merged(int32_t slot) const {
    return merged_ != nullptr && slot >= 0 && merged_->Holds(slot);
  }
  // y = epilogue(alpha * norm(x) W^T + bias), x f32. norm is RMSNorm if `beta` is an undefined
  // tensor, otherwise LayerNorm. If the GEMM cannot normalise its input itself, a norm op first
  // writes norm(x) to normed_.
  void NormedGemm(const Tensor& gamma, const Tensor& beta, LinearArgs args);
  // Self-attention of `rows`; rows.qkv must have been computed. In a decoder step, first stores
  // keys and values in the KV cache, unless rows.kv is set: then the QKV GEMM has stored them. The
  // result [rows, heads * head_dim] overwrites the query columns of rows.qkv; returns a view of
  // these columns.
  Tensor SelfAttention(const LayerRows& rows);
  // QkvPart names one of the three parts of qkv [rows, 3 * heads * head_dim]: the columns of the
  // queries, of the keys or of the values. HeadsOf returns a view of one part as [rows, heads,
  // head_dim].
  enum class QkvPart : uint8_t { kQuery, kKey, kValue };
  Tensor HeadsOf(const Tensor& qkv, QkvPart part) const;

  bool rotary() const { return config_.position == PositionEncoding::kRope; }
  // Bytes of scratch memory for one GEMM with weight `w` and up to `rows` rows; 0 if the model does
  // not have this weight.
  int64_t GemmScratchBytes(const WeightView& w, int64_t rows) const;

  // Rows per block of an input batch on a CPU; the size of hidden_ [rows, d_ff] depends on it. On a
  // GPU a batch is one block, because only many rows keep the device busy.
  static constexpr int64_t kBlockRows = 256;
  int64_t EncodeBlockRows() const {
    return stream_.backend() == Backend::kCpu ? kBlockRows : limits_.max_encode_tokens;
  }

  const SharedWeights shared_weights_;
  const ModelWeights& weights_;  // *shared_weights_
  int64_t block_rows_;           // most rows of one GEMM: max(EncodeBlockRows, max_step_tokens)
  DType activations_;            // dtype between ops; the residual stream and hidden states are f32

  // The current input batch (BeginEncode), kept between slices.
  Tensor encoder_host_;       // [max_encode_tokens, d_model] f32, pinned host copy of encoder_x_
  Tensor encoder_x_;          // [max_encode_tokens, d_model] f32, residual stream, then states
  Tensor encoder_qkv_;        // [max_encode_tokens, 3 I]
  Tensor encoder_arrays_;     // [3 max_encode_tokens + 1] i32: memory of the next three
  Tensor encoder_tokens_;     // [encoder_padded_rows_] i32
  Tensor encoder_positions_;  // [encoder_padded_rows_] i32
  Tensor encoder_offsets_;    // [encoder_sequences_ + 1] i32
  int64_t encoder_sequences_ = 0;
  int64_t encoder_rows_ = 0;
  int64_t encoder_padded_rows_ = 0;           // on a GPU PaddedGemmRows(encoder_rows_)
  Tensor encoder_adapters_;                   // [max_encode_tokens] i32, if there are adapters
  bool encoder_adapted_ = false;              // some input of the batch has an adapter
  int32_t encoder_adapter_ = -1;              // all inputs have this one; -1: they differ
  std::vector<AdapterRange> encoder_ranges_;  // of all rows; on a GPU, if some are worth dividing

  // The global tokens of the current input batch (ModelConfig::global_block), by input. A family
  // with global tokens computes x and qkv of all of them in the first sweep of each layer.
  struct GlobalTokens {
    int64_t rows = 0;  // number of global tokens in the batch
    Tensor x;          // [most rows, d_model] f32: sums of normed rows
    Tensor qkv;        // [most rows, 3 I]; attention does not read the queries
    // Pinned, with device copies. ranges: the rows of encoder_x_ that each one sums, ascending.
    Tensor ranges;    // [most rows, 2] i32: RowRange
    Tensor offsets;   // [max_encode_tokens + 1] i32: first row of each input
    Tensor adapters;  // [most rows] i32, if there are adapters: as row_adapters_

    std::span<const RowRange> all_ranges() const {
      return {ranges.as<const RowRange>(), static_cast<size_t>(rows)};
    }
  } globals_;

  // The adapter of each row of the GEMMs that are enqueued next; -1: none. Empty: no row has one.
  // Pinned, with a device copy.
  std::span<const int32_t> row_adapters_;
  bool one_adapter_ = false;  // the rows that have an adapter have the same (LoraInput)
  // Division of row_adapters_ into ranges of rows (DivideByAdapter). Gemm runs one GEMM per range;
  // empty: one GEMM for all rows. The ranges depend on the values of row_adapters_, so row_ranges_
  // must be empty during the capture of a CUDA graph.
  std::span<const AdapterRange> row_ranges_;
  std::unique_ptr<AdapterPool> adapters_;  // null: the model was loaded without adapters
  std::unique_ptr<MergedWeights> merged_;  // null: none
  bool use_merged_ = false;                // the GEMMs that are enqueued next read merged_

  // The current decoder step.
  StepArrays step_;
  Tensor x_;             // [max_step_tokens, d_model] f32, residual stream
  Tensor qkv_;           // [max_step_tokens, 3 I]
  Tensor states_;        // [max_step_tokens, d_model] f32
  Tensor next_tokens_;   // [max_step_sequences] i32
  Tensor parent_beams_;  // [max_step_sequences] i32
  Tensor history_;       // [slots of the cache] i32: id of the token in each slot

  // Intermediate results of one layer call.
  Tensor normed_;   // [block_rows_, d_model]
  Tensor hidden_;   // [block_rows_, d_ff]
  Tensor scratch_;  // [bytes] i8, of ops
  // Undefined without LoRA adapters. lora_scratch_: scratch memory of AddLora, also
  // LoraInput::copy. lora_words_: LoraInput::words. row_bias_: LinearArgs::row_bias.
  Tensor lora_scratch_;  // [bytes] i8
  Tensor lora_words_;    // [bytes] i8
  GridWaitRight grid_wait_right_;
  Tensor row_bias_;  // [elements], of type activations_

 private:
  enum class Sweep : uint8_t { kProject, kFinish };

  // The stack that input batches run through: the encoder, or the layers of a decoder-only model.
  const StackWeights& InputStack() const {
    return config_.has_encoder() ? weights_.encoder : weights_.decoder;
  }
  float AttentionScale(int64_t layer) const {
    const float scale = config_.attention_scale;
    return config_.scale_by_inverse_layer ? scale / static_cast<float>(layer + 1) : scale;
  }
  void CarveLora(Carver& carver);
  const LoraWeight* Corrected(const WeightView* w) const;
  // The arguments with the LoRA terms of the rows' adapters.
  LinearArgs WithLora(LinearArgs args);
  void GemmOfRange(const LinearArgs& args, const LayerInputRows* input, const AdapterRange& range);
  void GemmWithRowAdapters(const LinearArgs& args, const LayerInputRows* input);
  void Correct(const AddLoraArgs& args);
  void GemmWithRowBias(const LinearArgs& args, const AddLoraArgs& lora);
  void SetMask(const EncodeBatch& batch);
  void SetWindow(std::span<const int32_t> offsets);
  void SummariseMask(std::span<const int32_t> offsets);
  void SetGlobals(const EncodeBatch& batch);
  void SetAdapters(const EncodeBatch& batch);
  bool EncodeByGraph();
  int64_t LayerCostPerRow() const;
  int64_t SequenceOf(int64_t row) const;
  void RunInputRows(int64_t begin, int64_t end, Sweep sweep);
  Tensor AttendInput(const LayerRows& rows);
  Tensor AttendStep(const LayerRows& rows);
  KvOutput KvDestination(const WeightView& qkv, int64_t layer);

  StepShape InitialShape() const;
  // Which cache of CUDA graphs a decoder call uses. kStep: every sequence has one new token.
  // kPrompt: some sequences have several new tokens, and there are at most 1024 rows in all. kNone:
  // the call does not use graphs. On a CPU every call is kNone.
  enum class GraphKind : uint8_t { kNone, kStep, kPrompt };
  // Copies the batch into the index arrays step_, padded to the returned StepShape. Also returns
  // which graph cache may be used.
  std::pair<StepShape, GraphKind> PrepareStep(DecodeBatch batch);
  // Enqueues the decoder's layers for the batch that is in step_; the output rows' hidden states go
  // to states_.
  void Forward();
  void ForwardOrLaunch(const StepShape& shape, GraphKind kind);
  // Captures Forward as a CUDA graph. If `same_offsets` is false, the graph may be launched for
  // every batch of step_'s current StepShape with one new token per sequence. If it is true, the
  // graph may be launched only for batches of this StepShape whose offsets and group_offsets
  // (DecodeBatch) equal those of the current batch.
  std::unique_ptr<CudaGraph> CaptureForward(bool same_offsets);

  // Where the encoding of the current input batch continues: layer, first row and sweep of the next
  // block of rows. (Each layer takes two sweeps over the rows: q, k and v, then the rest.) The
  // batch is complete when layer_ is the number of layers of InputStack().
  int64_t layer_ = 0, row_ = 0;
  Sweep sweep_ = Sweep::kProject;
  bool bidirectional_ = false;  // EncodeBatch::bidirectional of the current input
  ColumnMask mask_;             // mask of the current input batch; empty: none

  // CUDA graphs of short input batches (at most 1024 rows), for which enqueueing a hundred kernels
  // one by one takes longer than executing them. Key: EncodeBatch::offsets, followed by -1 if an
  // input has an adapter, or by -2 if all have the one in merged_. Each entry has two graphs: the
  // first two layers, and the remaining layers. The device starts a graph only when its launch is
  // complete, and a launch takes longer the more nodes the graph has. The small first graph
  // therefore starts early and runs during the launch of the second.
  using EncodeGraphs = std::vector<std::unique_ptr<CudaGraph>>;
  GraphCache<std::vector<int32_t>, EncodeGraphs> encode_graphs_{{.threshold = 1, .capacity = 128}};

  // Arguments of attention for one block of rows of an input batch. Each input with rows in the
  // block has one entry. block_offsets_: index in the block of the input's first row there; a last
  // entry is the number of rows of the block. block_positions_: position of that row in the input.
  Tensor block_offsets_;    // [kBlockRows + 1] i32
  Tensor block_positions_;  // [kBlockRows] i32
  // For decoder-only models and encoders with a window (ModelConfig::local_radius). mask_lower_,
  // mask_upper_: EncodeBatch::lower_begin and upper_end, or the window's. mask_tiles_: one summary
  // (MaskTile) of the mask per 64 keys. gather_rows_, for decoder-only models: the row indices
  // passed to EncodedRows. On a GPU, pool_segments_: the segments passed to PoolEncoded.
  Tensor mask_lower_;     // [max_encode_tokens] i32
  Tensor mask_upper_;     // [max_encode_tokens] i32
  Tensor mask_tiles_;     // [most tiles, 8] i32: MaskTile
  Tensor gather_rows_;    // [max_step_tokens] i32
  Tensor pool_segments_;  // [max_encode_tokens, 5] i32: PoolSegment
  // Numbers that Stream::CopyH2D returned for the latest H2D copy of an EncodeBatch's arrays, of
  // gather_rows_ and of pool_segments_. Before the host writes to the pinned memory of an array, it
  // must wait for the array's copy (Stream::WaitForH2D).
  int64_t encode_upload_ = 0, gather_upload_ = 0, pool_upload_ = 0;

  Buffer pages_;
  Buffer workspace_;
  Buffer arrays_;

  // CUDA graphs of decoder steps in which every sequence has one new token. Key: the step's shape.
  // In step_graphs_, prompt_graphs_ and joint_graphs_, the first call with a key runs without
  // capture, so that objects that the ops create on first use exist before a capture.
  GraphCache<StepShape> step_graphs_{{.threshold = 1, .capacity = 256}};
  // CUDA graphs of decoder calls that have at most 1024 rows and in which some sequence has several
  // new tokens (a prompt). Key: the shape, and DecodeBatch's offsets and group_offsets.
  GraphCache<std::pair<StepShape, std::vector<int32_t>>> prompt_graphs_{
      {.threshold = 1, .capacity = 128}};
  // CUDA graphs that contain both a step with one new token per sequence and the work that
  // DecodeAndAppend appends to it. Key: the shape and AppendedWork::key. The threshold (uses of a
  // key before a capture) is higher than that of step_graphs_ and prompt_graphs_, because one
  // capture takes as much time as some hundreds of graph launches save.
  GraphCache<std::pair<StepShape, std::vector<int64_t>>> joint_graphs_{
      {.threshold = 16, .capacity = 128}};
  const void* captured_block_ = nullptr;  // address of step_'s arrays in all graphs above
};

}  // namespace quintet
