// One decoder step for all running requests: builds the batch, runs Model::Decode, then the sampler
// (engine/sampler.h). Teacher-forced scoring and task heads on decoder states use the same steps.
// Results of a request do not depend on the other requests of its steps.
//
// Async scheduling, on by default on a GPU: step n+1 is enqueued before the host has read the
// tokens of step n. Step n+1 takes those tokens from device memory, where the logits processors
// also find the token histories. Beams are advanced on the device as well (BeamStep); the host
// reads the same candidates one step later, to collect finished sequences and to decide when the
// search ends. A sequence that ended in step n therefore wastes one row in step n+1. A request can
// join a step that is enqueued ahead only if exactly one token of its prompt is left to prefill.
// These cases are synchronous: prefill of more than one token; the first step after a prompt, if it
// fans out into several sequences (beam search with a prompt of one token avoids this: all its
// beams prefill that token); log-probabilities; beam search with stop strings.
//
// While requests of several priorities run, most steps skip the lower ones (PriorityThrottle).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/batch_builder.h"
#include "engine/job.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/target_scores.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "models/model.h"

namespace quintet {

class Decoder {
 public:
  // Allocates every buffer of a step. `model` must outlive the decoder. If `async_scheduling` is
  // unset, it is on for a GPU and off for a CPU, where it gains nothing.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(Model* model,
                                                         std::optional<bool> async_scheduling);
  // Returns the bytes of the buffers that Create would allocate; the model need not be loaded.
  static int64_t BufferBytes(const ModelConfig& config, const ModelLimits& limits,
                             const Stream& stream);

  struct StepSize {
    int64_t sequences = 0, prefill_tokens = 0;
  };
  // Runs one step for `jobs`, which all decode and are in the order in which they were admitted.
  // Every generating sequence gets its next token, unless PriorityThrottle skips its priority in
  // this step; up to `prefill_tokens` prompt and target tokens fill the rest of the model's
  // max_step_tokens. If no job decodes in this step, StepSize::sequences is 0 and the device is
  // left to the encoder. If the next step is already enqueued, a job that is new in `jobs` joins
  // the step after it. `meanwhile` is called at most once: after the step is enqueued, before the
  // host waits for it and before any result is applied. Returns INTERNAL if the device failed, in
  // this step or an earlier one.
  absl::StatusOr<StepSize> Step(std::span<Job* const> jobs, int64_t prefill_tokens,
                                const PriorityPressure& pressure,
                                absl::FunctionRef<void()> meanwhile);
  // Must be called after Step has thrown std::bad_alloc: drops all work in flight. The caller must
  // then end every job that it passed to that Step.
  void Reset();
  bool async_scheduling() const { return async_scheduling_; }
  // Computes the task head's logits [rows, labels] from hidden states [rows, d_model] and appends
  // them to `values`.
  void Classify(const Tensor& states, std::vector<float>* values);
  // The object that computes the log-probabilities of given target tokens. EncoderRunner also uses
  // it, for the targets of causal models.
  TargetScores* target_scores() { return &target_scores_; }

 private:
  Decoder(Model* model, std::optional<bool> async_scheduling);
  absl::Status Allocate();
  void Gather(std::span<Job* const> jobs, int64_t prefill_tokens);
  void AddMembers(std::span<Job* const> jobs);
  // The three functions below process the output rows of a step. `states` holds all of them, in
  // this order: rows for SampleAll, rows for Score, rows for ClassifyOutputs. `row` is the index in
  // `states` of the first row of the called function. SampleAll and Score return the index after
  // the last row that they have processed.
  int64_t SampleAll(const Tensor& states, std::span<Job* const> jobs, bool planned,
                    absl::FunctionRef<void()> meanwhile);
  int64_t Score(const Tensor& states, int64_t row);
  void ClassifyOutputs(const Tensor& states, int64_t row);
  void AppendRows(const Tensor& rows, std::vector<float>* values) const;
  // Enqueues the step that follows the step in slot `current` (StepSlot). Does nothing if the host
  // must read the results of `current` first, because some sequence needs them.
  void EnqueueNextStep(std::span<Job* const> jobs, StepSlot current);
  bool PlanNextStep(std::span<Job* const> jobs, StepSlot current);
  void AddToNextStep(const Job& job, size_t member, StepSlot current);
  void MatchSlices(std::span<Job* const> jobs, StepSlot slot);
  bool InNextStep(std::span<Job* const> jobs) const;
  absl::StatusOr<StepSize> FinishStepInFlight(std::span<Job* const> jobs,
                                              absl::FunctionRef<void()> meanwhile);

  Model* model_;
  bool async_scheduling_;
  BatchBuilder batch_;
  Sampler sampler_;
  PriorityThrottle throttle_;
  TargetScores target_scores_;
  Buffer labels_;        // [max_step_tokens, labels] f32, device
  absl::Status status_;  // of the device, sticky

  // StepSlot of the step that is enqueued and whose results the host has not read yet; unset if
  // there is no such step.
  std::optional<StepSlot> next_slot_;

  // Scratch memory of one step, reserved for max_step_sequences jobs.
  PriorityPressure pressure_;
  std::vector<Priority> classes_;             // of the jobs that could be in the step
  std::vector<size_t> members_;               // indices in `jobs` of those that are in the step
  std::vector<int64_t> prefill_left_;         // [members] tokens still to prefill
  std::vector<int64_t> prefill_;              // [members] tokens to prefill in this step
  std::vector<SamplingInput> inputs_;         // generations that get tokens in this step
  std::vector<SamplingInput> next_inputs_;    // [members] and in the next step
  std::vector<int32_t> next_moves_;           // [members + 1] index of its move in the next step
  std::vector<const SamplingSlice*> slices_;  // [jobs] rows in the batch in flight; null: none
  std::vector<GenerationSlice> selecting_;    // generations whose results have arrived
  std::vector<Job*> scoring_, classifying_;   // teacher-forced jobs: targets, task head
};

}  // namespace quintet
