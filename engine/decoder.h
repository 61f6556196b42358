// One decoder step for all running requests: gather inputs, Model::Decode, logits, processors,
// search; scores and heads of given tokens ride in the same step. What a request gets does not
// depend on who shares its steps.
//
// Where a device works beside the host, steps of greedy requests run ahead: the step after is
// queued before this one's tokens are known to the host, and takes them from the device's memory. A
// sequence that turns out to have ended has one row there for nothing.
//
// While requests of several priorities run, the less urgent ones rest in most steps (StepTurns).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/batch_builder.h"
#include "engine/forced_decoding.h"
#include "engine/generation.h"
#include "engine/ranking_plan.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/target_scores.h"
#include "kernels/buffer.h"
#include "kernels/selection.h"
#include "models/model.h"

namespace quintet {

// A request as the decoder sees it: one of the two tasks, and where results go.
struct DecoderJob {
  uint64_t id = 0;
  Priority priority = Priority::kNormal;
  absl::Span<const int32_t> source_slots;  // of its encoded input; empty for causal models
  Generation* generation = nullptr;
  ForcedDecoding* forced = nullptr;
  int32_t top_logprobs = 0;  // of scored targets
  Result* result = nullptr;  // of forced: targets, or the task head's values, rows, columns
};

class Decoder {
 public:
  // Allocates every buffer of a step. `model` outlives the decoder.
  // `run_ahead`: on a CPU too, where it gains nothing.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(Model* model, bool run_ahead = false);
  // What these buffers take, for a model that is not loaded.
  static int64_t BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream);

  struct StepSize {
    int64_t sequences = 0, given_tokens = 0;
  };
  // Runs one step for `jobs`, in their order of admission: every generating sequence whose turn it
  // is gets its next token, and what is left of the model's tokens a step, `given_tokens` at most,
  // reads given ones; no sequences where it is nobody's turn. Jobs that come while a step is queued
  // ahead take part from the next one on. INTERNAL when the device failed, in this step or an
  // earlier one.
  absl::StatusOr<StepSize> Step(absl::Span<const DecoderJob> jobs, int64_t given_tokens,
                                const Urgent& urgent);
  // Appends the task head's logits of states [rows, d_model], which are the model's.
  void Classify(const Tensor& states, std::vector<float>* values);
  // Where scores of states from elsewhere are made, too.
  TargetScores* target_scores() { return &target_scores_; }

 private:
  // A step queued before the one under way had ended: one row for each of these, ranked into one
  // half of the results.
  struct Ahead {
    std::vector<uint64_t> ids;
    int half = 0;
  };
  // What a chunk's search takes, known before its step runs.
  struct SearchNeeds {
    bool ranks = false, changes = false, reads = false, sums = false, together = false;
    bool logprobs = false;
    int64_t alternatives = 0;
  };

  // Rows of logits that are searched together, so that the logits of a large batch and vocabulary
  // stay in bounds.
  struct Chunk {
    absl::Span<Generation* const> generations;
    int64_t rows = 0;
  };

  Decoder(Model* model, bool run_ahead);
  absl::Status Allocate();
  void Gather(absl::Span<const DecoderJob> jobs, int64_t given_tokens);
  void AddMembers(absl::Span<const DecoderJob> jobs);
  // Each takes its rows of `states` from `row` on and returns the row after them.
  int64_t SearchAll(const Tensor& states, int64_t row, absl::Span<const DecoderJob> jobs);
  int64_t Score(const Tensor& states, int64_t row);
  void CollectStates(const Tensor& states, int64_t row);
  void AppendRows(const Tensor& rows, std::vector<float>* values) const;
  Chunk ChunkFrom(size_t begin) const;
  bool FitsOneChunk() const;
  SearchNeeds NeedsOf(const Chunk& chunk) const;
  // Logits that stay as they are get their sums in the same reading as their ranking.
  bool SumsInRanking() const { return needs_.sums && needs_.ranks && !needs_.changes; }
  void Search(const Chunk& chunk, const Tensor& states, absl::Span<const DecoderJob> jobs);
  void PlanRanking(const Chunk& chunk);
  // `under_way`: whose tokens the step just queued chooses, one row each, into one half of the
  // results.
  void QueueAhead(absl::Span<const DecoderJob> jobs, const Ahead& under_way);
  bool AddAhead(absl::Span<const DecoderJob> jobs, const Ahead& under_way, Ahead* ahead);
  void FindEntries(absl::Span<const DecoderJob> jobs, absl::Span<const uint64_t> ids);
  bool TakesPart(absl::Span<const DecoderJob> jobs) const;
  absl::StatusOr<StepSize> FinishAhead(absl::Span<const DecoderJob> jobs);
  void FindAlternatives(const Chunk& chunk);
  void BringLogits(const Chunk& chunk);
  void Process(const Chunk& chunk);
  void Rank(int64_t rows, int64_t width, int half);
  void Select(const Chunk& chunk, int half);
  // What ops write and read of a mirrored buffer.
  Tensor Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const;
  Tensor Logits(int64_t rows) const;
  Tensor Vector(const Buffer& mirrored, int64_t rows) const;

  Model* model_;
  int64_t vocab_, logits_stride_, chunk_rows_;
  bool runs_ahead_;
  BatchBuilder batch_;
  std::vector<Warper> warpers_;  // one a thread

  // The step under way.
  StepTurns turns_;
  Urgent urgent_;
  std::vector<Priority> classes_;
  std::vector<size_t> members_;   // of `jobs`: those that take part
  std::vector<int64_t> entries_;  // of each of `jobs` in the step under way; -1: it rests or is new
  std::vector<int64_t> left_, shares_;
  std::vector<Generation*> selecting_;
  std::vector<uint64_t> selecting_ids_;
  std::vector<const DecoderJob*> scoring_, stating_;

  SearchNeeds needs_;
  bool planned_ = false;  // the ranking, before the step
  int64_t ranked_width_ = 1;
  std::optional<Ahead> ahead_;
  absl::Status status_;  // of the device

  // Of ops alone: scratch, and [max_step_tokens, labels].
  Buffer topk_scratch_, labels_;
  // Mirrored. [chunk_rows, vocab] logits; [chunk_rows] sums; [2, chunk_rows, ranking] results,
  // which kernels write on the host's side; [chunk_rows, alternatives] results.
  Buffer logits_, log_sums_;
  Buffer ranked_, ranked_indices_, top_, top_indices_;
  RankingPlan plan_, alternatives_plan_;
  TargetScores target_scores_;
  Buffer raw_;  // [chunk_rows, vocab] of the host: logits before the processors
  std::vector<int64_t> ranking_of_;  // first entry of each generation of the chunk
  std::vector<std::pair<Generation*, int64_t>> processing_;  // (generation, its row)
  std::vector<int64_t> processing_rows_;                     // the same rows counted in the chunk
};

}  // namespace quintet
