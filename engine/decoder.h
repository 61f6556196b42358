// One decoder step for all running requests: gather inputs, Model::Decode, logits, processors,
// search; scores and heads of given tokens ride in the same step. What a request gets does not
// depend on who shares its steps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/batch_builder.h"
#include "engine/forced_decoding.h"
#include "engine/generation.h"
#include "engine/request.h"
#include "kernels/buffer.h"
#include "kernels/selection.h"
#include "models/model.h"

namespace quintet {

// A request as the decoder sees it: one of the two tasks, and where results go.
struct DecoderJob {
  uint64_t id = 0;
  absl::Span<const int32_t> source_slots;  // of its encoded input; empty for causal models
  Generation* generation = nullptr;
  ForcedDecoding* forced = nullptr;
  bool classify = false;     // forced states go through the task head
  int32_t top_logprobs = 0;  // of scored targets
  Result* result = nullptr;  // of forced: targets, values, rows, columns
};

class Decoder {
 public:
  // Allocates every buffer of a step. `model` outlives the decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(Model* model);
  // What these buffers take, for a model that is not loaded.
  static int64_t BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream);

  struct StepSize {
    int64_t sequences = 0, given_tokens = 0;
  };
  // Runs one step for `jobs`, in their order of admission: every generating sequence gets its next
  // token, and what is left of the model's tokens a step, `given_tokens` at most, reads given ones.
  // INTERNAL when the device failed, in this step or an earlier one.
  absl::StatusOr<StepSize> Step(absl::Span<const DecoderJob> jobs, int64_t given_tokens);
  // Appends the task head's logits of states [rows, d_model], which are the model's.
  void Classify(const Tensor& states, std::vector<float>* values);

 private:
  // Rows of logits that are searched together, so that the logits of a large batch and vocabulary
  // stay in bounds.
  struct Chunk {
    absl::Span<Generation* const> generations;
    int64_t rows = 0;
  };

  explicit Decoder(Model* model);
  absl::Status Allocate();
  void Gather(absl::Span<const DecoderJob> jobs, int64_t given_tokens);
  // Each takes its rows of `states` from `row` on and returns the row after them.
  int64_t SearchAll(const Tensor& states, int64_t row);
  int64_t Score(const Tensor& states, int64_t row);
  void CollectStates(const Tensor& states, int64_t row);
  void AppendRows(const Tensor& rows, std::vector<float>* values) const;
  void Search(const Chunk& chunk, const Tensor& states);
  void BeginRanking();
  void AddEntry(int64_t rows, int64_t k, bool log_softmax);
  TopKArgs FinishRanking(int64_t rows) const;
  void FindAlternatives(const Chunk& chunk);
  void BringLogits(const Chunk& chunk);
  void Process(const Chunk& chunk);
  void Rank(const Chunk& chunk);
  void Select(const Chunk& chunk);
  void RecordScores(int64_t top);
  // What ops write and read of a mirrored buffer.
  Tensor Matrix(const Buffer& mirrored, DType dtype, int64_t rows, int64_t columns) const;
  Tensor Vector(const Buffer& mirrored, int64_t rows) const;

  Model* model_;
  int64_t vocab_, chunk_rows_;
  BatchBuilder batch_;
  std::vector<Warper> warpers_;  // one a thread

  // The step under way.
  std::vector<int64_t> left_, shares_;
  std::vector<Generation*> selecting_;
  std::vector<const DecoderJob*> scoring_, stating_;

  bool needs_sums_ = false, sums_in_ranking_ = false;
  int64_t entries_ = 0, ranked_width_ = 1;
  absl::Status status_;  // of the device

  // Of ops alone: scratch, and [max_step_tokens, labels].
  Buffer topk_scratch_, labels_;
  // Mirrored. [chunk_rows, vocab] logits; [chunk_rows] sums, shifts, biases; [chunk_rows, ranking]
  // and [chunk_rows, alternatives] results; what a ranking plans with, one entry a request.
  Buffer logits_, log_sums_, shifts_, biases_;
  Buffer ranked_, ranked_indices_, top_, top_indices_;
  Buffer row_offsets_, ks_, log_softmax_;
  Buffer targets_, log_probs_, target_top_, target_top_tokens_;  // [max_step_tokens]
  Buffer raw_;  // [chunk_rows, vocab] of the host: logits before the processors
  std::vector<int64_t> ranking_of_;  // first entry of each generation of the chunk
  std::vector<std::pair<Generation*, int64_t>> processing_;  // (generation, its row)
  std::vector<int64_t> processing_rows_;                     // the same rows counted in the chunk
};

}  // namespace quintet
