// One decoder step for all running requests: gather inputs, Model::Decode, the search for the next
// tokens (engine/sampler.h); scores and heads of given tokens ride in the same step. What a
// request gets does not depend on who shares its steps.
//
// Where a device works beside the host, steps run ahead: the step after is queued before this one's
// tokens are known to the host, and takes them from the device's memory, where the logits
// processors find the histories, too. Beams follow their candidates there as well (BeamStep); the
// host takes the same candidates a step later, for what has finished and for when to end. Sequences
// and searches that turn out to have ended have one step there for nothing. A request joins such a
// step with the last token of its prompt. Reading longer prompts, the step after several sequences
// began as one row, requests for log-probabilities, and beams with stop strings, wait for the host.
//
// While requests of several priorities run, the less pressure ones rest in most steps
// (PriorityThrottle).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/batch_builder.h"
#include "engine/generation.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/target_scores.h"
#include "engine/teacher_forcing.h"
#include "kernels/buffer.h"
#include "models/model.h"

namespace quintet {

// A request as the decoder sees it: one of the two tasks, and where results go.
struct DecoderJob {
  uint64_t id = 0;
  Priority priority = Priority::kNormal;
  absl::Span<const int32_t> source_slots;  // of its encoded input; empty for causal models
  Generation* generation = nullptr;
  TeacherForcing* forced = nullptr;
  int32_t top_logprobs = 0;       // of scored targets
  Result* result = nullptr;       // of forced: targets, or the task head's values, rows, columns
  bool* out_of_memory = nullptr;  // set where an allocation for its result failed
};

class Decoder {
 public:
  // Allocates every buffer of a step. `model` outlives the decoder.
  // `async_scheduling`: unset, where a device works beside the host; on a CPU it gains nothing.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(Model* model,
                                                         std::optional<bool> async_scheduling);
  // What these buffers take, for a model that is not loaded.
  static int64_t BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream);

  struct StepSize {
    int64_t sequences = 0, prefill_tokens = 0;
  };
  // Runs one step for `jobs`, in their order of admission: every generating sequence whose turn it
  // is gets its next token, and what is left of the model's tokens a step, `prefill_tokens` at
  // most, reads given ones; no sequences where it is nobody's turn. Jobs that come while a step is
  // queued ahead take slice from the next one on. `meanwhile` may be called once the device has
  // this step and before the host waits for it, when nothing has been selected yet. INTERNAL when
  // the device failed, in this step or an earlier one.
  absl::StatusOr<StepSize> Step(absl::Span<const DecoderJob> jobs, int64_t prefill_tokens,
                                const PriorityPressure& pressure,
                                absl::FunctionRef<void()> meanwhile);
  // After a Step that threw std::bad_alloc: drops what it had begun. Every job of that call has to
  // end.
  void Reset();
  // Whether a device works beside the host.
  bool async_scheduling() const { return async_scheduling_; }
  // Appends the task head's logits of states [rows, d_model], which are the model's.
  void Classify(const Tensor& states, std::vector<float>* values);
  // Where scores of states from elsewhere are made, too.
  TargetScores* target_scores() { return &target_scores_; }

 private:
  Decoder(Model* model, std::optional<bool> async_scheduling);
  absl::Status Allocate();
  void Gather(absl::Span<const DecoderJob> jobs, int64_t prefill_tokens);
  void AddMembers(absl::Span<const DecoderJob> jobs);
  // Each takes its rows of `states` from `row` on and returns the row after them.
  int64_t SampleAll(const Tensor& states, absl::Span<const DecoderJob> jobs, bool planned,
                    absl::FunctionRef<void()> meanwhile);
  int64_t Score(const Tensor& states, int64_t row);
  void CollectStates(const Tensor& states, int64_t row);
  void AppendRows(const Tensor& rows, std::vector<float>* values) const;
  // Queues the step after the one whose search is under way, where it can be: every generation in
  // it takes the tokens that the search chooses.
  void EnqueueNextStep(absl::Span<const DecoderJob> jobs, int in_flight);
  bool PlanNextStep(absl::Span<const DecoderJob> jobs, int in_flight);
  void AddToNextStep(const DecoderJob& job, const SamplingSlice* slice, int in_flight);
  void MatchSlices(absl::Span<const DecoderJob> jobs, int which);
  bool InNextStep(absl::Span<const DecoderJob> jobs) const;
  absl::StatusOr<StepSize> FinishStepInFlight(absl::Span<const DecoderJob> jobs,
                                              absl::FunctionRef<void()> meanwhile);

  Model* model_;
  bool async_scheduling_;
  BatchBuilder batch_;
  Sampler sampler_;

  // The step under way.
  PriorityThrottle throttle_;
  PriorityPressure pressure_;
  std::vector<Priority> classes_;
  std::vector<size_t> members_;  // of `jobs`: those that take slice
  // Of each of `jobs` in the search under way; null: it rests or is new.
  std::vector<const SamplingSlice*> slices_;
  std::vector<int64_t> prefill_left_, prefill_;
  std::vector<SamplingInput> inputs_, next_inputs_;  // in it, and in the one after it
  std::vector<Sampler::GenerationSlice> selecting_;
  std::vector<const DecoderJob*> scoring_, stating_;

  std::optional<int> next_slot_;  // the search of a step queued before the one under way had ended
  absl::Status status_;           // of the device

  Buffer labels_;  // [max_step_tokens, labels] of ops
  TargetScores target_scores_;
};

}  // namespace quintet
