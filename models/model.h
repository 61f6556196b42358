// The engine's interface to a model: packed tokens in; hidden states, logits and log-probabilities
// out. A model does not know requests, time or search.
//
// Tensor arguments and results are memory of the model's stream (kernels/runtime/stream.h). On a
// GPU calls only enqueue work; to read a result on the host, copy it there first. Spans and tables
// of cache slots are host memory of the caller, who may reuse it as soon as the call returns. The
// only exception is `targets` of TargetLogProbs, a pinned buffer (Stream::AllocatePinned): the
// caller enqueues its H2D copy before the call and must not change it until that copy has run.
//
// A Model owns its weights, its KV cache pages, and workspaces for the limits it was loaded with.
// No call below allocates tensor memory, except that Decode enlarges its index arrays for very long
// sequences. Not thread safe: one engine thread calls it. In f32 the result of a row never depends
// on the other rows of a call. In bf16 and f16 it may, because the number of rows can decide which
// kernels run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"
#include "kernels/linear/linear.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/pooling.h"
#include "kernels/runtime/stream.h"
#include "kernels/sampling/beam_step.h"
#include "kernels/sampling/token_history.h"
#include "models/config/config.h"

namespace quintet {

struct ModelLimits {
  int64_t max_encode_tokens = 4096;  // tokens of one EncodeBatch
  int64_t max_step_tokens = 512;     // new tokens of one Decode call, all sequences together
  int64_t max_step_sequences = 256;  // sequences (beams) of one Decode call
  int64_t cache_pages = 1024;        // KV cache pages, of self- and cross-attention together
  int64_t page_size = 16;            // tokens per page
};

// Bytes of one KV cache page: keys and values of `page_size` tokens in all decoder layers.
inline int64_t CachePageBytes(const ModelConfig& config, int64_t page_size,
                              DType dtype = DType::kF32) {
  return config.decoder_layers * 2 * config.inner() * page_size * DTypeBytes(dtype);
}

// An adapter in files: a path that ReadAdapter (models/adapters/adapter.h) takes, and the name by
// which requests select it.
struct AdapterSource {
  std::string name, path;
  bool operator==(const AdapterSource&) const = default;
};
// An adapter that was read for a model (models/adapter_layout.h).
struct PackedAdapter;
using AdapterHandle = std::shared_ptr<const PackedAdapter>;
struct AdapterLayout;
class AdapterPool;
class AdapterSlots;
class Model;
struct ModelWeights;

struct LoadOptions {
  // Another model that was loaded with the same options, but for its device; null: none. The new
  // one shares what it can with it: on a CPU the weights, everywhere the adapters, so that a handle
  // of one of them is valid for the other. It must outlive the call.
  const Model* replica_of = nullptr;
  WeightType weights = WeightType::kF32;
  // Stores keys and values in the KV cache as e4m3 (KvCache::dtype). Needs a GPU and a weight type
  // with 16-bit activations (ActivationType).
  bool fp8_cache = false;
  Device* device = nullptr;  // outlives the model; null: the CPU
  ModelLimits limits;
  bool follow_symlinks = false;         // allow weight files that are symbolic links
  std::vector<AdapterSource> adapters;  // LoRA adapters to load with the model
  // Adds the only element of `adapters` to the weights, so that every request has this adapter and
  // it costs no time. If the checkpoint stores a matrix that the adapter changes as int8 or fp8,
  // this has no effect, and adapters() has the adapter.
  bool merge_adapter = false;
  // How many adapters can be used at the same time (AdapterSlots); 0: all of `adapters`.
  int64_t adapter_slots = 0;
  // On a GPU, keeps a second copy of the weights with one recently used adapter merged into it, so
  // that calls with only that adapter take no longer than without one (MergedWeights). Has no
  // effect if the type of the weights does not support such a copy.
  bool merged_weights = false;
};

// The dtype of the KV cache of a model that is loaded with these options.
inline DType CacheType(const LoadOptions& options) {
  return options.fp8_cache ? DType::kF8 : ActivationType(options.weights, options.device);
}

// Sizes of a loaded model: how many bytes of memory it takes, and its number of parameters.
struct ModelMemory {
  int64_t weights = 0;         // bytes
  int64_t cache = 0;           // bytes of KV cache pages
  int64_t workspace = 0;       // bytes used by forward passes
  int64_t adapters = 0;        // bytes of the factors of LoRA adapters, without merged_weights
  int64_t merged_weights = 0;  // bytes of the copy (LoadOptions::merged_weights)
  // host_adapters: on a GPU, bytes of host memory of the loaded adapters, from which the slots are
  // filled; else 0. adapter_reading: bytes of host memory that the factors of the largest adapter
  // take while it is read.
  int64_t host_adapters = 0, adapter_reading = 0;
  int64_t parameters = 0;  // number of stored values; tied tensors count once
};

// Argument of the function passed to Model::set_observer: the residual stream after a layer. For
// the last layer of an encoder it is the residual stream after the final norm.
struct LayerOutput {
  bool decoder = false;
  int64_t layer = 0;
  Tensor x;  // [rows, d_model] f32
};

constexpr int64_t kMaxTopLogProbs = 20;  // most alternatives per row in TargetLogProbs

// n whole inputs, packed without padding. In an encoder a token attends to all tokens of its input.
// In a causal model it attends to itself and the earlier tokens of its input, unless
// `bidirectional` or a mask (lower_begin, upper_end) changes that.
struct EncodeBatch {
  std::span<const int32_t> tokens;   // [total], ids in [0, vocab)
  std::span<const int32_t> offsets;  // [n + 1]; no input is empty

  // Position of each token for GPT-2's position embedding. If empty, the tokens of each input have
  // positions 0, 1, 2, ...
  std::span<const int32_t> positions;  // [total] or empty
  // If true, tokens of a causal model attend also to later tokens of their input, except those that
  // the mask hides.
  bool bidirectional = false;
  // The adapter of each input, as its slot (AdapterSlots); -1: none.
  std::span<const int32_t> adapters;  // [n], or empty: none
  // Additional mask, two bounds per key (FlashMask; kernels/attention/mask.h). Values are indices
  // of tokens in their input: key j is hidden from queries i >= lower_begin[j] and from queries i <
  // upper_end[j].
  std::span<const int32_t> lower_begin, upper_end;  // [total] or empty
};

// One decoder call: n sequences with one or more new tokens each. Sequences that attend to the same
// encoder input (the beams of a request) are neighbours and form a group.
struct DecodeBatch {
  // [total] new token ids, packed. A negative value -1 - i stands for the token id that element i
  // of the device buffer next_tokens() will contain. An op that was enqueued earlier (the sampler
  // of the previous step) writes it there.
  std::span<const int32_t> tokens;
  std::span<const int32_t> offsets;  // [n + 1]
  // Number of keys of each sequence after this call: position of its last new token + 1. New token
  // i of sequence s has position kv_lens[s] - (offsets[s+1] - offsets[s]) + i.
  std::span<const int32_t> kv_lens;  // [n]
  // KV cache slot of every position of each sequence. The slots of earlier positions are read (they
  // may belong to another beam); the slots of the new tokens are written. Sequences that are
  // adjacent in the batch and have equal tokens up to and including the new one are allowed to
  // share one slot for their new tokens.
  const int32_t* slots = nullptr;  // [n, slots_stride]
  int64_t slots_stride = 0;
  // Groups of beams whose parent beams the host does not know yet. BeamStep, the op of the previous
  // step that selects the beams and writes their parents to parent_beams(), may still be running.
  // Each of these beams has one new token. The caller passes `slots` of these beams as they were
  // before that BeamStep. On the device each beam's slots of earlier positions are then replaced by
  // the slots of its parent beam.
  std::span<const BeamMove> moves;
  // Cross-attention, encoder-decoder models only. Group g has the sequences from group_offsets[g]
  // to group_offsets[g + 1] - 1. source_slots: KV cache slots of each group's encoder input;
  // source_lens: its length in tokens.
  std::span<const int32_t> group_offsets;  // [groups + 1], indices of sequences
  const int32_t* source_slots = nullptr;   // [groups, source_slots_stride]
  int64_t source_slots_stride = 0;
  std::span<const int32_t> source_lens;  // [groups]
  // The adapter of each sequence, as its slot (AdapterSlots); -1: none.
  std::span<const int32_t> adapters;  // [n], or empty: none
  // Output rows: the rows whose hidden states Decode returns, as ascending indices into `tokens`.
  std::span<const int32_t> output_rows;
};

// Work to append to a decoder step, so that both are captured in one CUDA graph. For equal keys and
// equal step shapes, `enqueue` must enqueue identical launches on identical addresses; values that
// differ between such steps must be read from device memory. Two callers must never use the same
// key, not even one after the other, because their buffers have different addresses.
struct AppendedWork {
  std::vector<int64_t> key;
  absl::FunctionRef<void(const Tensor& states)> enqueue;  // states: those that Decode returns
};

struct DecodedStep {
  Tensor states;
  bool appended = false;  // the appended work is enqueued, too
};

class Model {
 public:
  // Loads a model. `directory` is the directory or file that FindModel has returned. `pool` must
  // outlive the model. Errors: NOT_FOUND, INVALID_ARGUMENT (the message gives the file, the field
  // or tensor, the expected value and the actual one), UNIMPLEMENTED, RESOURCE_EXHAUSTED, and
  // INTERNAL if the device fails.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                                     const LoadOptions& options, ThreadPool* pool);
  // Returns how much memory Load would use. Checks the files' headers as Load does, but neither
  // reads weight matrices nor allocates memory for weights, KV cache or workspace.
  static absl::StatusOr<ModelMemory> Measure(const std::string& directory,
                                             const LoadOptions& options, ThreadPool* pool);
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }
  const KvCache& cache() const { return cache_; }
  Stream& stream() { return stream_; }
  const ModelMemory& memory() const { return memory_; }
  int64_t weight_bytes() const { return memory_.weights; }
  virtual std::shared_ptr<const ModelWeights> weights() const { return nullptr; }
  virtual const AdapterPool* adapter_pool() const { return nullptr; }
  // The LoRA adapters that were loaded with the model (LoadOptions::adapters). TakeAdapters moves
  // them to the caller. From then on the model itself holds only the adapters that are in slots.
  virtual std::span<const AdapterHandle> adapters() const { return {}; }
  virtual std::vector<AdapterHandle> TakeAdapters() { return {}; }
  // Reads a further adapter for this model. Thread-safe. Errors: those of AdapterPool::Read, which
  // include FAILED_PRECONDITION if the model must be loaded again to make room for it.
  virtual absl::StatusOr<AdapterHandle> ReadAdapter(const AdapterSource& source) const;
  // The slots for adapters; null if the model was loaded without adapters.
  virtual AdapterSlots* adapter_slots() { return nullptr; }
  int64_t parameters() const { return memory_.parameters; }

  // Sets a function that is called after every layer; null: no function. Used to compare two models
  // (models/verify.h). Only on the CPU.
  void set_observer(std::function<void(const LayerOutput&)> observer) {
    observer_ = std::move(observer);
  }

  // Starts encoding a batch of whole inputs: through the encoder, or through a causal model's
  // layers without storing keys and values in the KV cache. batch.tokens has at most
  // max_encode_tokens tokens. A model holds one such batch at a time: BeginEncode discards an
  // earlier batch even if it is incomplete. EncodeSlice does the work in slices; therefore a long
  // input does not delay decoder steps of other requests.
  virtual void BeginEncode(const EncodeBatch& batch) = 0;
  // Encodes the next slice of the batch, about `work` units (one unit is one token through one
  // layer). Returns true when the batch is complete.
  virtual bool EncodeSlice(int64_t work) = 0;
  // Hidden states of the encoded batch after the final norm, [total, d_model] f32. May be called
  // only after EncodeSlice has returned true. The result is valid until the next BeginEncode.
  virtual Tensor EncodedStates() const = 0;
  // Pinned host buffer with the shape of EncodedStates(); on the CPU it is EncodedStates() itself.
  // To read rows of EncodedStates() on the host, call stream().CopyD2H with the address of these
  // rows in the host buffer, then stream().Synchronize().
  virtual Tensor HostEncoderStates() const { return EncodedStates(); }
  // Enqueues PoolRows (kernels/ops/pooling.h): pools rows of EncodedStates() to rows of
  // HostEncoderStates(). At most max_encode_tokens segments (QT_CHECK). The host may read the
  // results after an event that is recorded later, or after Synchronize. Returns false, and
  // enqueues nothing, if these two tensors are the same memory, as on the CPU.
  virtual bool PoolEncoded(std::span<const PoolSegment>) { return false; }
  // Gathers rows of EncodedStates() by their indices. There may be at most max_step_tokens indices,
  // in any order and with repetitions. Returns [rows, d_model] f32, valid until the next
  // EncodedRows or Decode. Causal models only.
  virtual Tensor EncodedRows(std::span<const int32_t> rows) = 0;
  // Projects encoder hidden states to the cross-attention keys and values of all decoder layers
  // with one GEMM, and writes row r to slots[r] of the KV cache. Encoder-decoder models only.
  // `states` [rows, d_model] f32 are rows of EncodedStates(), or a copy of such rows in host memory
  // (never in device memory). `position` is the position of the first row in its sequence. In
  // rotary models all rows must belong to one sequence, because keys and values are rotated by
  // position; in other models they may belong to several. position + rows <= max_encode_tokens.
  // `adapters` [rows] holds the slot of each row's adapter, -1: none; if it is empty, no row has
  // one.
  virtual void ProjectCross(const Tensor& states, int64_t position, std::span<const int32_t> slots,
                            std::span<const int32_t> adapters) = 0;

  // Runs the decoder. Returns the hidden states of the output rows (batch.output_rows) after the
  // final norm, [output_rows, d_model] f32, valid until the next Decode. On a GPU the returned
  // tensor's memory has room for max_step_tokens rows. A long prompt can be prefilled in chunks,
  // with one call of Decode per chunk.
  virtual Tensor Decode(const DecodeBatch& batch) = 0;
  // Like Decode, but may also run work.enqueue on the result. On a GPU, once steps of this shape
  // with this work's key have been frequent, the step and the work are captured and launched as one
  // CUDA graph. (Between two separate graphs the device would idle.) If this call has not run
  // work.enqueue, `appended` is false in the result, and the caller must run work.enqueue itself.
  virtual DecodedStep DecodeAndAppend(const DecodeBatch& batch, const AppendedWork&) {
    return {Decode(batch)};
  }
  // Device buffer [max_step_sequences] i32 that the sampler fills with token ids. Where
  // DecodeBatch::tokens has the value -1 - i, the next Decode uses element i of this buffer as the
  // token id. The address of the buffer never changes. Returns an undefined tensor if the model has
  // no such buffer.
  virtual Tensor next_tokens() const { return Tensor(); }
  // Device buffer [max_step_sequences] i32 in which the next Decode finds the parent beams of each
  // BeamMove m of DecodeBatch::moves. Element m.row + b belongs to beam b of m's request and holds
  // the number of its parent, also counted within that request. The address of the buffer never
  // changes. Returns an undefined tensor if the model does not support this.
  virtual Tensor parent_beams() const { return Tensor(); }
  // All token ids so far (prompt and generated) of each sequence of the latest Decode, including
  // that call's new tokens; valid until the next Decode.
  virtual TokenHistory history() const = 0;
  // logits [rows, vocab] f32 = states [rows, d_model] f32 times the transposed language-model head
  // [vocab, d_model]. T5 models that scale logits (ModelConfig::scale_logits) also multiply the
  // logits by d_model^-0.5.
  virtual void Logits(const Tensor& states, const Tensor& logits) = 0;
  // log_probs[r] f32 = log softmax(logits of states[r])[targets[r]], computed without a [rows,
  // vocab] matrix; states [rows, d_model], targets [rows] i32. top_tokens [rows, top] i32 and
  // top_log_probs [rows, top] f32 receive the `top` most likely tokens of each row and their
  // log-probabilities, unless both are undefined tensors; top <= kMaxTopLogProbs
  // (kernels/sampling/log_prob.h).
  virtual void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                              const Tensor& top_log_probs, const Tensor& top_tokens) = 0;
  // Classification heads: logits [rows, labels] f32 from states [rows, d_model]. Sequence
  // classification is a dense layer, tanh, and an output layer (GPT-2: one linear layer, `score`);
  // token classification and question answering are one linear layer.
  virtual void Classify(const Tensor& states, const Tensor& logits) = 0;

 protected:
  Model(ModelConfig config, const ModelLimits& limits, const Stream& stream)
      : config_(std::move(config)), limits_(limits), stream_(stream) {}

  void Observe(bool decoder, int64_t layer, const Tensor& x) const {
    if (observer_) observer_({decoder, layer, x});
  }

  ModelConfig config_;
  ModelLimits limits_;
  Stream stream_;
  KvCache cache_;
  ModelMemory memory_;
  std::function<void(const LayerOutput&)> observer_;
};

}  // namespace quintet
