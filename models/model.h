// What the engine sees of a model: packed tokens in, states, logits and scores out. Requests, time
// and search are not known here.
//
// Tensors given and taken are memory of the model's stream (kernels/stream.h): on a GPU work is
// queued, and whoever reads them on the host copies them there first. Spans and tables of slots are
// the caller's host memory and free again when a call returns. Targets are mirrored memory.
//
// A Model owns its weights, its pages of keys and values, and the workspaces for the limits it was
// loaded with; no call below allocates. Not thread safe: one engine thread calls it. Row results in
// f32 never depend on what else is in a call; in bf16 and f16 its size may choose the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/beam_step.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"
#include "kernels/token_history.h"
#include "models/config.h"

namespace quintet {

struct ModelLimits {
  int64_t max_encode_tokens = 4096;  // tokens of one packed encoder batch
  int64_t max_step_tokens = 512;     // new tokens of one Decode call, all sequences together
  int64_t max_step_sequences = 256;  // sequences (beams) of one Decode call
  int64_t cache_pages = 1024;        // pages of keys and values, self and cross together
  int64_t page_size = 16;            // tokens a page
};

// Bytes of one page of keys and values, all decoder layers together.
inline int64_t CachePageBytes(const ModelConfig& config, int64_t page_size,
                              DType dtype = DType::kF32) {
  return config.decoder_layers * 2 * config.inner() * page_size * DTypeBytes(dtype);
}

struct LoadOptions {
  WeightType weights = WeightType::kF32;
  Device* device = nullptr;  // where the model runs; outlives it. Null: the CPU
  ModelLimits limits;
  bool follow_symlinks = false;  // of weight files; refused otherwise
};

// What a loaded model holds, in bytes.
struct ModelMemory {
  int64_t weights = 0;
  int64_t cache = 0;       // pages of keys and values
  int64_t workspace = 0;   // of forward passes
  int64_t parameters = 0;  // a count: stored values, shared ones once
};

// The residual stream after one layer; an encoder's last one is taken after the final norm.
struct LayerOutput {
  bool decoder = false;
  int64_t layer = 0;
  Tensor x;  // [rows, d_model] f32
};

constexpr int64_t kMaxTopLogProbs = 20;  // alternatives that TargetLogProbs can list per row

// Whole inputs, one after another, for one encoding. An encoder's rows see all of their input, a
// causal model's what comes before them in it, unless the fields below say otherwise.
struct EncodeBatch {
  absl::Span<const int32_t> tokens;   // [total], ids in [0, vocab)
  absl::Span<const int32_t> offsets;  // [n + 1]; no input is empty

  // Causal models only. Positions that rows are embedded at; empty: counted from 0 in each input.
  absl::Span<const int32_t> positions;  // [total]
  // Rows see later ones too, where the columns do not hide them.
  bool both_ways = false;
  // Columns of a mask (kernels/attention_mask.h), in rows of the input: row j is hidden from those
  // at lower_begin[j] and after, and from those before upper_end[j].
  absl::Span<const int32_t> lower_begin, upper_end;  // [total] or empty
};

// One decoder call: n sequences with one or more new tokens each. Sequences that share a source
// (the beams of a request) are neighbours and form a group.
struct DecodeBatch {
  // [total] new tokens, packed. -1 - i stands for chosen()[i], which an op queued before leaves
  // there.
  absl::Span<const int32_t> tokens;
  absl::Span<const int32_t> offsets;  // [n + 1]
  // Keys of each sequence after this call, i.e. position of its last new token + 1. Token i of
  // sequence s has position kv_lens[s] - (offsets[s+1] - offsets[s]) + i.
  absl::Span<const int32_t> kv_lens;  // [n]
  // Slot of every position of each sequence: positions before the new tokens are read (another
  // beam's slot, possibly), the new ones are written.
  const int32_t* slots = nullptr;  // [n, slots_stride]
  int64_t slots_stride = 0;
  // Beams, of one new token each, whose slots before it are those of the sequence that parents()
  // names: an op queued before leaves them there. Their rows of `slots` are as they were for the
  // step of that op.
  absl::Span<const BeamMove> moves;
  // Cross-attention, encoder-decoder models only.
  absl::Span<const int32_t> group_offsets;  // [groups + 1] in sequences
  const int32_t* source_slots = nullptr;    // [groups, source_slots_stride]
  int64_t source_slots_stride = 0;
  absl::Span<const int32_t> source_lens;  // [groups]
  // Rows of `tokens` whose final states are wanted, ascending.
  absl::Span<const int32_t> wanted;
};

// What a caller queues behind a decoder step's states, again and again: with equal keys the same
// launches, on the same addresses wherever the step has the same shape. What differs between such
// steps, they read from memory. Keys are the caller's alone: another one, later perhaps, has other
// addresses.
struct Following {
  std::vector<int64_t> key;
  absl::FunctionRef<void(const Tensor& states)> queue;
};

struct DecodedStep {
  Tensor states;
  bool followed = false;  // Following is queued, too
};

class Model {
 public:
  // Reads the directory (Hugging Face or converted). Errors: NOT_FOUND, INVALID_ARGUMENT (what,
  // where, expected, got), UNIMPLEMENTED, RESOURCE_EXHAUSTED, and INTERNAL of a device. `pool`
  // outlives the model.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                                     const LoadOptions& options, ThreadPool* pool);
  // What Load would hold, with the same checks of the files' headers, but without reading matrices
  // or taking that memory.
  static absl::StatusOr<ModelMemory> Measure(const std::string& directory,
                                             const LoadOptions& options, ThreadPool* pool);
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }
  const KvCache& cache() const { return cache_; }
  Stream& stream() { return stream_; }
  const ModelMemory& memory() const { return memory_; }
  int64_t weight_bytes() const { return memory_.weights; }
  int64_t parameters() const { return memory_.parameters; }

  // Called after every layer, for comparing models (models/verify.h); null: none. On the CPU only.
  void set_observer(std::function<void(const LayerOutput&)> observer) {
    observer_ = std::move(observer);
  }

  // Whole inputs: through the encoder, or through a causal model's layers without keeping keys and
  // values. One packed batch at a time, resumable, since a long input must not hold up running
  // streams. total <= max_encode_tokens. BeginEncode drops what was under way.
  virtual void BeginEncode(const EncodeBatch& batch) = 0;
  // Does about `work` units (one unit: one token through one layer) and returns true when the batch
  // is complete.
  virtual bool EncodeSlice(int64_t work) = 0;
  // [total, d_model] f32 after the final norm; valid from completion until the next BeginEncode.
  virtual Tensor EncoderStates() const = 0;
  // Room for them in mirrored memory of the host: rows are there after stream().Download of these
  // addresses and Synchronize.
  virtual Tensor HostEncoderStates() const { return EncoderStates(); }
  // These rows of EncoderStates(), at most max_step_tokens of them, in any order and any number of
  // times: [rows, d_model] f32, valid until the next call or Decode. Causal models.
  virtual Tensor EncodedRows(absl::Span<const int32_t> rows) = 0;
  // Keys and values of all decoder layers, by one product, for rows of EncoderStates() or of a copy
  // of them: [rows, d_model] f32 of one sequence, the first at `position` in it (rotary encodings
  // turn keys and values by it; without them, of whole sequences one after the other), into slots
  // [rows]. The positions are below max_encode_tokens. A copy is memory of the host, on any
  // backend.
  virtual void ProjectCross(const Tensor& states, int64_t position,
                            absl::Span<const int32_t> slots) = 0;

  // Decoder. Returns the wanted rows' states after the final norm, [wanted, d_model] f32, valid
  // until the next Decode. Causal models take long prompts in pieces: call again with the next
  // tokens.
  virtual Tensor Decode(const DecodeBatch& batch) = 0;
  // Decode. On a device, once steps of this shape and key have come often, what follows is queued
  // as well, in one recorded piece of work with the step: two would run one after the other with a
  // pause between them.
  virtual DecodedStep DecodeThen(const DecodeBatch& batch, const Following&) {
    return {Decode(batch)};
  }
  // Room for tokens that the next Decode takes from the stream's memory, [max_step_sequences] i32;
  // always the same. Undefined: the model takes none.
  virtual Tensor chosen() const { return Tensor(); }
  // The same for the beams that those tokens continue (DecodeBatch::moves).
  virtual Tensor parents() const { return Tensor(); }
  // What the sequences of the latest Decode have, their new tokens included; valid until the next.
  virtual TokenHistory history() const = 0;
  // logits [rows, vocab] f32 = head(states), the d_model^-0.5 factor applied where the model has
  // one.
  virtual void Logits(const Tensor& states, const Tensor& logits) = 0;
  // log softmax(logits)[target] of each row, never holding [rows, vocab]; top alternatives, at most
  // kMaxTopLogProbs, when top_tokens is defined (log_prob.h).
  virtual void TargetLogProbs(const Tensor& states, const Tensor& targets, const Tensor& log_probs,
                              const Tensor& top_log_probs, const Tensor& top_tokens) = 0;
  // Task heads: [rows, labels] f32 from states [rows, d_model] (sequence: dense, tanh, out_proj or
  // GPT-2's score; token and QA: one layer).
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
