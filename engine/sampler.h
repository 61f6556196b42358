// Computes the next tokens of a step from its hidden states: logits, logits processors, top-k for
// greedy decoding and beam search, random sampling. Copies tokens or candidates to the host, and
// also log-probabilities for the requests that want them.
//
// Each sampling batch is planned on the host first, as small arrays that are uploaded only if they
// differ from those of the previous batch; then its kernels are enqueued. Two batches can be in
// flight, one per StepSlot: the second takes tokens and beam scores from device memory, so it can
// be enqueued before the host has read the results of the first. A batch that copies only tokens or
// candidates to the host is captured as a CUDA graph once its shape has occurred several times.
//
// Not thread safe; used by the stepping thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/generation.h"
#include "engine/pinned_array.h"
#include "engine/top_k_plan.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/graph_cache.h"
#include "kernels/sampling/beam_sampling.h"
#include "kernels/sampling/beam_step.h"
#include "kernels/sampling/logits_processors.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/selection.h"
#include "models/model.h"

namespace quintet {

// Two steps can be in flight. Each has a StepSlot: its own half of the result buffers and its own
// event.
enum class StepSlot : uint8_t { kFirst, kSecond };
constexpr int Index(StepSlot slot) { return static_cast<int>(slot); }
constexpr StepSlot Other(StepSlot slot) {
  return slot == StepSlot::kFirst ? StepSlot::kSecond : StepSlot::kFirst;
}

// An input of Plan: one generation of a sampling batch.
struct SamplingInput {
  uint64_t id = 0;  // of the job
  Generation* generation = nullptr;
  int32_t sequence = 0;    // index in the decode batch of its first sequence; the others follow
  bool in_flight = false;  // its latest token is known only to the device
  int32_t carried = -1;    // if in_flight: its first row in the previous sampling batch
};

// One index into each array of a sampling batch and of its plan. SamplingSlice::begin holds the
// indices of a generation's first elements.
struct SamplingPosition {
  int32_t row = 0;                   // rows of logits
  int32_t entry = 0;                 // top-k entries
  int32_t draw = 0;                  // random draws of tokens
  int32_t sequence = 0;              // indices of live sequences
  int32_t rule = 0, rule_token = 0;  // rules of logits processors, and their token ids
  int32_t beam_group = 0, eos_token = 0, beam_draw = 0;
};

// A request (Generation) in its sampling batch: where its elements begin in the batch's arrays.
struct SamplingSlice {
  uint64_t id = 0;  // of the job
  SamplingPosition begin;
  int32_t sequences_end = 0;
};

// A generation and its SamplingSlice, which locates its results; an input of Select.
struct GenerationSlice {
  Generation* generation = nullptr;
  const SamplingSlice* slice = nullptr;
};

class Sampler {
 public:
  // With `async_scheduling`, the device also selects the next token and the parent of each beam
  // (BeamStep), and keeps them in device memory for the model's next step. `model` outlives the
  // sampler.
  Sampler(Model* model, bool async_scheduling);
  // Returns the bytes of the buffers that Allocate would allocate; the model need not be loaded.
  static int64_t BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream);
  absl::Status Allocate();

  // Returns how many of `inputs`, counted from the first, fit into one sampling batch; at least
  // one. A batch has at most LogitsChunkRows rows, and the logits-processor rules of all its
  // generations together refer to at most kMaxRuleTokens token ids.
  size_t CountFitting(std::span<const SamplingInput> inputs) const;
  // Plans the batch of StepSlot `slot` on the host and enqueues the upload of the plan. All
  // `inputs` must fit into one batch (CountFitting). `whole_step`: `inputs` are all sampling inputs
  // of the step.
  void Plan(std::span<const SamplingInput> inputs, StepSlot slot, bool whole_step);
  // These functions do what Plan does, in three parts, so that threads can share the work on a
  // large batch: BeginPlan; PlanOne once for each input, concurrently for different `i`; EndPlan.
  // rows(slot) is valid after BeginPlan.
  void BeginPlan(std::span<const SamplingInput> inputs, StepSlot slot, bool whole_step);
  void PlanOne(std::span<const SamplingInput> inputs, size_t i, StepSlot slot);
  void EndPlan(StepSlot slot);
  // Enqueues the kernels of the planned batch, which takes rows [first, first + rows(slot)) of
  // `all_states`, the output rows of the latest Decode.
  void Enqueue(const Tensor& all_states, int64_t first, StepSlot slot);
  // Enqueues a decoder step, then the sampling batch planned for `slot` on the step's output rows.
  void EnqueueStep(const DecodeBatch& decode_batch, StepSlot slot);
  // Waits for the results of the batch of StepSlot `slot`. INTERNAL when the device failed.
  absl::Status Wait(StepSlot slot);
  // Extends each request's sequences (Generation) by the chosen tokens. Must be called after Wait.
  void Select(std::span<const GenerationSlice> slices, StepSlot slot);

  // rows: number of logits rows of the batch that is planned for StepSlot `slot`. slices: the
  // SamplingSlices of that batch, one per generation. Both are valid until the next Plan for the
  // same StepSlot.
  int64_t rows(StepSlot slot) const { return batches_[Index(slot)].rows; }
  std::span<const SamplingSlice> slices(StepSlot slot) const {
    return batches_[Index(slot)].slices;
  }
  // Returns which sequences of the generation of `slice` are in the batch planned for StepSlot
  // `slot`, as ascending indices within the generation.
  std::span<const int32_t> SequencesOf(const SamplingSlice& slice, StepSlot slot) const;
  // Whether the batch writes the next token of every row i to next_tokens()[i] of the model, in
  // device memory. In beam search it then also writes the index of the row's parent beam (within
  // its request) to parent_beams()[i].
  bool NextTokensOnDevice(StepSlot slot) const {
    const SamplingBatch& batch = batches_[Index(slot)];
    return batch.token_per_row || batch.advances_beams;
  }

 private:
  static constexpr int64_t kMaxTopK = 544;            // candidates of 32 beams with 16 eos ids
  static constexpr int64_t kMaxRuleTokens = 1 << 16;  // of a batch: several times a request's limit
  static constexpr int64_t kMaxEosTokens = 16;        // of one request

  // The features that a batch needs. They determine which kernels it runs, and are known before the
  // batch's decoder step runs.
  struct Needs {
    bool top_k = false;           // top-k entries
    bool adds_bias = false;       // beam scores are added to the rows of some entries
    bool log_softmax = false;     // some entries rank log-probabilities
    bool rule_log_sums = false;   // rules turn some rows into log-probabilities
    bool logprobs = false;        // log-probabilities of the chosen tokens
    int64_t top_logprobs = 0;     // most likely tokens to report per row
    int64_t max_k = 1;            // of the top-k entries; stride of the candidates
    bool carries_scores = false;  // beam scores come from the previous batch
    auto operator<=>(const Needs&) const = default;
  };
  struct SamplingBatch {
    std::vector<SamplingSlice> slices;
    std::vector<int32_t> sequences;  // of all slices
    SamplingPosition end;            // the sizes of all arrays, without padding
    int64_t rows = 0;
    bool pads = false;                  // see CanPad
    int64_t padded_rows = 0;            // rows and padding
    int64_t uniform_group = 0;          // rows ranked together, if equally many everywhere; else 0
    bool one_sequence_per_row = false;  // no generation fans out from one row
    bool beams = false;
    // token_per_row: the batch has no beams; hence TopK or Sample alone chooses the next token of
    // every row. advances_beams: BeamStep chooses the tokens and parents of the beams on the
    // device. Each of these two flags implies one_sequence_per_row.
    bool token_per_row = false, advances_beams = false;
    Needs needs;
  };

  // Identifies the CUDA graph of a batch: batches with equal keys enqueue identical launches on
  // identical addresses.
  struct GraphKey {
    StepSlot slot = StepSlot::kFirst;
    Needs needs;
    bool rule_tokens = false, eos = false;
    int64_t rows = 0, entries = 0, rules = 0, draws = 0, groups = 0, slots_stride = 0;
    int64_t beam_draws = 0, max_beams = 0;
    const void* states = nullptr;
    const void* slots = nullptr;
    const void* lens = nullptr;
    auto operator<=>(const GraphKey&) const = default;
  };

  // The memory of a buffer: device memory only, or pinned host memory with a device buffer.
  enum class Memory : uint8_t { kDevice, kPinned };
  struct Spec {
    Buffer* buffer;
    int64_t bytes;
    Memory memory;
  };
  static constexpr size_t kBuffers = 16;
  // Lists every Buffer member with its size and kind of memory. If `sampler` is null, the pointers
  // are null and only the sizes are of use.
  static std::array<Spec, kBuffers> BufferSpecs(const ModelConfig& config,
                                                const ModelLimits& limits, const Stream& stream,
                                                Sampler* sampler);

  // Parts of BeginPlan and PlanOne, defined in sampler_plan.cc. AddSlice appends the slice of one
  // generation to `batch` and adds the features that the generation needs to batch->needs. CanPad
  // returns whether the batch can be padded, PaddedRows the number of rows of the padded batch.
  // ResizePlan sets the sizes of all arrays. FillPadding sets the elements of the arrays for the
  // padding rows; the other functions set those of one generation, whose slice begins at `at`.
  void AddSlice(const SamplingInput& input, SamplingBatch* batch) const;
  bool CanPad(const SamplingBatch& batch) const;
  int64_t PaddedRows(const SamplingBatch& batch) const;
  void ResizePlan(SamplingBatch* batch);
  void FillPadding(const SamplingBatch& batch);
  void FillRules(const SamplingInput& input, const SamplingPosition& at, int64_t rows);
  void FillTopK(const SamplingInput& input, const SamplingPosition& at, int64_t rows,
                const Needs& needs);
  void FillBeamGroups(const Generation& generation, const SamplingPosition& at, int64_t rows);
  void FillDraws(const SamplingInput& input, const SamplingPosition& at);
  void FillBeamDraw(const SamplingInput& input, const SamplingPosition& at, int64_t rows);

  // The functions below are defined in sampler.cc. They enqueue the kernels of a planned batch and
  // read its results.
  void EnqueueOps(const Tensor& states, StepSlot slot);
  // Returns the rows of `states` from row `first` on: the batch's rows and, on a GPU, padding rows,
  // whose values do not matter. Besides the padding rows of the batch (padded_rows), PaddedGemmRows
  // may add further ones, so that cuBLASLt must choose algorithms for few different row counts.
  Tensor PaddedStates(const Tensor& states, int64_t first, const SamplingBatch& batch) const;
  void LaunchGraph(const Tensor& states, StepSlot slot);
  GraphKey GraphKeyOf(const Tensor& states, StepSlot slot) const;
  void EnqueueTopLogProbs(const SamplingBatch& batch);
  void EnqueueRules(const SamplingBatch& batch);
  void EnqueueTopK(const SamplingBatch& batch, StepSlot slot);
  void EnqueueSample(const SamplingBatch& batch, StepSlot slot);
  void EnqueueSampleBeams(const SamplingBatch& batch, StepSlot slot);
  void EnqueueBeamStep(const SamplingBatch& batch, StepSlot slot);
  void EnqueueCandidateLogits(const SamplingBatch& batch, StepSlot slot);
  RowResults ResultsOf(const GenerationSlice& one, StepSlot slot) const;

  // Views of the buffers below as tensors.
  Tensor DeviceMatrix(const Buffer& pinned, DType dtype, int64_t rows, int64_t columns) const;
  Tensor Logits(int64_t rows) const;
  Tensor RawLogits(int64_t rows) const;
  Tensor LogSums(int64_t rows) const;
  Tensor Scratch(const Buffer& buffer) const;
  Tensor RowBias(const Needs& needs) const;
  Tensor CandidateScores(const SamplingBatch& batch, StepSlot slot) const;
  Tensor CandidateIndices(const SamplingBatch& batch, StepSlot slot) const;
  int64_t CandidateOffset(StepSlot slot) const;

  Model* const model_;
  const int64_t id_;  // unique in the process: the model, which keys graphs by it, outlives us
  const int64_t vocab_, logits_stride_, max_rows_;
  const bool async_scheduling_;
  SamplingBatch batches_[2];  // indexed by StepSlot
  GraphCache<GraphKey> graphs_;
  absl::Status status_;  // of the device, sticky

  // The plan of the latest batch.
  TopKPlan top_k_plan_, logprobs_plan_;
  PinnedArray<RowRules> rules_;       // one per row that logits processors change
  PinnedArray<int32_t> rule_tokens_;  // token ids that rules_ refer to
  PinnedArray<Draw> draws_;           // one per sampled token
  PinnedArray<BeamDraw> beam_draws_;  // beam sampling, one per generation
  PinnedArray<BeamGroup> beam_groups_;
  PinnedArray<int32_t> eos_tokens_;     // token ids that beam_groups_ refer to
  PinnedArray<int32_t> carried_rows_;   // [rows] GatherScoresArgs::from
  PinnedArray<int32_t> entry_rows_;     // [entries] first row of each top-k entry
  PinnedArray<int32_t> entry_use_raw_;  // [entries] 1: its raw logits are in raw_logits_
  PinnedArray<int32_t> draw_rows_;      // [draws] row of each draw
  PinnedArray<int32_t> draw_use_raw_;   // [draws] 1: its raw logits are in raw_logits_

  // Shapes are in BufferSpecs.
  Buffer topk_scratch_, rules_scratch_, sample_scratch_;
  Buffer logits_, raw_logits_, log_sums_, top_k_log_sums_;
  Buffer beam_scores_, row_biases_;
  Buffer candidate_scores_, candidate_indices_, candidate_logits_;
  Buffer sampled_tokens_, sampled_logits_;
  Buffer top_logits_, top_tokens_;
};

}  // namespace quintet
