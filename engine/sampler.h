// From a step's states to its next tokens: logits, the rules on them (logits processors), the
// ranking of greedy and beam requests and the draws of sampled ones. To the host come back the
// tokens or candidates, and log-probabilities where a request asks for them.
//
// A batch is planned on the host first, as small arrays that are uploaded only where they differ
// from those of the batch before. Then its kernels are queued.
//
// Two searches, numbered 0 and 1, may be under way: the second can be queued before the results of
// the first are known to the host, since it takes the tokens and the beams' scores from the device.
// A batch that brings nothing to the host but tokens or candidates is recorded as a graph once its
// shape has come a few times, and replayed from then on.
//
// One thread, that of the engine.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/generation.h"
#include "engine/pinned_array.h"
#include "engine/top_k_plan.h"
#include "kernels/beam_sampling.h"
#include "kernels/beam_step.h"
#include "kernels/buffer.h"
#include "kernels/logit_rules.h"
#include "kernels/sampling.h"
#include "kernels/selection.h"
#include "models/model.h"

namespace quintet {

// A generation that takes slice in a batch.
struct SamplingInput {
  uint64_t id = 0;
  Generation* generation = nullptr;
  int32_t sequence = 0;    // index in the batch of its first row's sequence; the others follow
  bool in_flight = false;  // its histories are one token longer than the host knows
  int32_t carried = -1;    // with `ahead`: its first row in the batch under way
};

// Where one generation's rows and results are in a batch; indices of their first ones.
struct SamplingSlice {
  uint64_t id = 0;
  int32_t row = 0;
  int32_t entry = 0;                               // in the ranking
  int32_t draw = 0;                                // in the draws, when it has any
  int32_t sequences_begin = 0, sequences_end = 0;  // in the batch's sequences
};

class Sampler {
 public:
  // `async_scheduling`: beams' next tokens too are left where the model's next step takes them
  // (BeamStep).
  Sampler(Model* model, bool async_scheduling);
  // Bytes that Allocate would take, for a model that is not loaded.
  static int64_t BufferBytes(const ModelConfig& config, const Stream& stream);
  absl::Status Allocate();

  // How many of `inputs`, from the first on, fit one batch; at least one.
  size_t CountFitting(absl::Span<const SamplingInput> inputs) const;
  // Plans batch `which` for `inputs`, which fit, and queues the upload of the plan.
  void Plan(absl::Span<const SamplingInput> inputs, int which);
  // Queues the planned batch of the latest Decode's rows `states` [rows(), d_model].
  void Enqueue(const Tensor& states, int which);
  // Queues a step of the model and behind it the planned batch of the rows it wants.
  void EnqueueStep(const DecodeBatch& batch, int which);
  // Waits for the batch's results. INTERNAL when the device failed.
  absl::Status Wait(int which);

  // The planned batch; valid until it is planned anew.
  int64_t rows(int which) const { return batches_[which].rows; }
  absl::Span<const SamplingSlice> slices(int which) const { return batches_[which].slices; }
  absl::Span<const int32_t> SequencesOf(const SamplingSlice& slice, int which) const;
  // Whether the model's chosen()[i] will be the next token of row i, or of the beam that becomes
  // row i, whose predecessor is then parents()[i].
  bool NextTokensOnDevice(int which) const {
    return batches_[which].token_per_row || batches_[which].advances_beams;
  }

  // Lets the generation of a slice take its tokens.
  struct GenerationSlice {
    Generation* generation = nullptr;
    const SamplingSlice* slice = nullptr;
  };
  void Select(absl::Span<const GenerationSlice> chosen, int which);

 private:
  // What a batch takes, known before its step runs.
  struct Needs {
    bool top_k = false, adds_bias = false, log_softmax = false;
    bool rule_log_sums = false;  // rows that rules turn into log-probabilities
    bool logprobs = false;
    int64_t top_logprobs = 0;
    int64_t max_k = 1;            // of the ranking
    bool carries_scores = false;  // scores of beams from the batch before
    auto operator<=>(const Needs&) const = default;
  };
  struct SamplingBatch {
    std::vector<SamplingSlice> slices;
    std::vector<int32_t> sequences;  // of the slices' entries
    int64_t rows = 0;
    bool one_sequence_per_row = false, beams = false;
    // One lane a row: without beams its next tokens are by row at once, with beams a BeamStep
    // leaves them.
    bool token_per_row = false, advances_beams = false;
    Needs needs;
  };

  // What a recorded batch depends on besides what its kernels read: searches that agree in it are
  // the same launches.
  struct GraphKey {
    int which = 0;
    Needs needs;
    bool rule_tokens = false, eos = false;
    int64_t rows = 0, entries = 0, rules = 0, draws = 0, groups = 0, slots_stride = 0;
    int64_t beam_draws = 0, max_beams = 0;
    const void* states = nullptr;
    const void* slots = nullptr;
    const void* lens = nullptr;
    auto operator<=>(const GraphKey&) const = default;
  };
  struct RecordedSearch {
    int64_t seen = 0;  // how often
    std::unique_ptr<DeviceGraph> graph;
  };

  void EnqueueOps(const Tensor& states, int which);
  void RunRecorded(const Tensor& states, int which);
  void PlanGeneration(const SamplingInput& input, SamplingBatch* batch);
  void PlanRules(const SamplingInput& input, int64_t rows, int64_t row, Needs* needs);
  void PlanTopK(const SamplingInput& input, int64_t rows, Needs* needs);
  void PlanBeamGroups(const Generation& generation, int64_t rows, const SamplingSlice& slice);
  void PlanDraws(const SamplingInput& input, absl::Span<const int32_t> sequences,
                 SamplingSlice* slice);
  void PlanBeamDraw(const SamplingInput& input, int64_t rows, const SamplingSlice& slice);
  void EnqueueTopLogProbs(const SamplingBatch& batch);
  void EnqueueRules(const SamplingBatch& batch);
  void EnqueueTopK(const SamplingBatch& batch, int which);
  void EnqueueSample(const SamplingBatch& batch, int which);
  void EnqueueSampleBeams(const SamplingBatch& batch, int which);
  void EnqueueBeamStep(const SamplingBatch& batch, int which);
  GraphKey GraphKeyOf(const Tensor& states, int which) const;
  void EnqueueCandidateLogits(const SamplingBatch& batch, int which);
  RowResults ResultsOf(const GenerationSlice& chosen, int which) const;
  // What ops write and read of a mirrored buffer.
  Tensor Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const;
  Tensor Logits(int64_t rows) const;
  Tensor RawLogits(int64_t rows) const;
  Tensor LogSums(int64_t rows) const;
  Tensor Scratch(const Buffer& buffer) const;
  Tensor RowBias(const Needs& needs) const;
  // The candidates of a batch, as kernels write them on the host's side.
  Tensor CandidateScores(const SamplingBatch& batch, int which) const;
  Tensor CandidateIndices(const SamplingBatch& batch, int which) const;
  int64_t CandidateOffset(int which) const;

  Model* const model_;
  const int64_t id_;  // no other batch of the process has it: the model outlives this one
  const int64_t vocab_, logits_stride_, max_rows_;
  const bool async_scheduling_;
  SamplingBatch batches_[2];
  std::map<GraphKey, RecordedSearch> recorded_;
  absl::Status status_;  // of the device

  TopKPlan top_k_plan_, logprobs_plan_;
  PinnedArray<RowRules> rules_;
  PinnedArray<int32_t> rule_tokens_;
  PinnedArray<Draw> draws_;
  PinnedArray<BeamDraw> beam_draws_;
  PinnedArray<BeamGroup> beam_groups_;
  PinnedArray<int32_t> eos_tokens_, carried_rows_;  // tokens of the groups; CarryScores' `from`
  // Of each entry of the ranking, then of each draw: its first row, and whether its raw logits are
  // those that were kept.
  PinnedArray<int32_t> entry_rows_, entry_use_raw_, draw_rows_, draw_use_raw_;

  // Of ops alone; [most rows, ..]: logits, raw logits of rows that rules change, scores of beams as
  // the latest BeamStep leaves them, and as the next ranking adds them.
  Buffer topk_scratch_, rules_scratch_, sample_scratch_, top_k_log_sums_, logits_, raw_logits_;
  Buffer beam_scores_, row_biases_;
  // Mirrored; [most rows, ..]: log-sum-exp of raw logits; twice for two searches, written by
  // kernels on the host's side: the candidates' values and indices, the draws; raw logits of the
  // candidates and of the draws; best top_logprobs.
  Buffer log_sums_, candidate_scores_, candidate_indices_, sampled_tokens_;
  Buffer candidate_logits_, sampled_logits_, top_logits_, top_tokens_;
};

}  // namespace quintet
