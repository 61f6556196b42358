// Runs the model over whole inputs: encodes one packed batch in time slices, then does each job's
// follow-up work in blocks of rows. For decoding jobs that work is the projection to
// cross-attention keys and values; for scoring jobs of causal models, the log-probabilities of
// their targets. Used by the stepping thread only.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/clock.h"
#include "engine/encoder_cache.h"
#include "engine/input_batch.h"
#include "engine/job.h"
#include "engine/step_pace.h"
#include "engine/target_scores.h"
#include "models/model.h"

namespace quintet {

class EncoderRunner {
 public:
  // The runner stores the hidden states of encoded inputs in `cache`. `model`, `cache` and `scores`
  // outlive the runner.
  EncoderRunner(Model* model, EncoderCache* cache, TargetScores* scores, Clock clock);

  // Reserves memory for `jobs` jobs. With up to that many jobs this class allocates nothing more;
  // the model still may.
  void Reserve(size_t jobs);
  // Appends to `jobs` every job that is being encoded, projected to cross-attention keys and
  // values, or scored. If Advance throws std::bad_alloc, the caller must end all these jobs,
  // because the encoder batch cannot be continued.
  void Jobs(std::vector<Job*>* jobs) const;

  // Whether the model still encodes a batch, or holds hidden states of a batch that have yet to be
  // projected (to cross-attention keys and values) or scored. While true, Begin must not be called.
  bool active() const;
  // The highest priority of the jobs that are being encoded, projected (to cross-attention keys and
  // values) or scored; unset if there are none.
  std::optional<Priority> HighestPriority() const;
  // Starts an encoder batch with the inputs of `jobs`. Long scoring jobs are split into parts
  // (PackedScoring); the input of such a job is its next part.
  void Begin(std::span<Job* const> jobs);
  // Adds a job whose encoder output was found in the encoder cache. The next calls of Advance
  // project that output to cross-attention keys and values if the job decodes, and report the job
  // as complete.
  void AddCached(Job* job, EncodedStates encoded);
  // Queues a scoring job that has a further part to encode (PackedScoring splits long requests into
  // parts). The part waits for a later batch.
  void AddContinuation(Job* job) { continuations_.push_back(job); }
  bool has_continuations() const { return !continuations_.empty(); }
  // Calls `take` for each job that AddContinuation has queued, in the order of the queue. Removes a
  // job from the queue if `take` returns true.
  void TakeContinuations(absl::FunctionRef<bool(Job* job)> take);
  // Removes a job that has ended. If the encoder batch in progress contains rows of it and of other
  // jobs, the job's rows are still computed, but their results are dropped.
  void Remove(const Job* job);

  // Encodes, projects and scores for about `budget_us` microseconds (at least one slice). Calls
  // `ready` for every complete job, with the hidden states [rows, d_model] f32 of its input. The
  // hidden states and the event EncodedStates::downloaded stay valid as long as `states.owner`
  // lives or, if it is null, until the next Begin. A decoding job is complete once the kernels that
  // write its cross-attention keys and values to Job::source_slots are enqueued. A scoring job is
  // complete once Job::result has the scores of its current part.
  void Advance(int64_t budget_us,
               absl::FunctionRef<void(Job* job, const EncodedStates& states)> ready);

 private:
  struct Input {
    Job* job;
    int64_t begin, end;       // rows in the encoder batch
    int64_t pooled_rows = 0;  // see EncodedStates
  };
  struct Projection {
    Job* job;
    EncodedStates encoded;
    int64_t first_row = 0;  // in the encoder batch
    int64_t rows_done = 0;  // projected, or scored
  };

  void AddProjection(Projection projection);
  void Encode(int64_t budget_us);
  void AddEncodedInputs();
  void PoolOnDevice();
  Tensor EnqueueDownload(const Input& input) const;
  // Processes one block of rows, beginning with the first entry of projections_, the list of
  // encoded jobs. Projects the rows to cross-attention keys and values or, for a scoring job,
  // computes log-probabilities from them. Returns how many entries this call has completed; these
  // are the first ones of the list.
  int64_t Project(int64_t budget_us);
  int64_t AppendConsecutive(int64_t room, Tensor* states);
  bool ScoreSome(Projection* scoring, int64_t budget_us);

  Model* const model_;
  EncoderCache* const cache_;
  TargetScores* const scores_;
  const Clock clock_;
  std::vector<Input> inputs_;          // of the batch being encoded
  std::list<Projection> projections_;  // jobs whose input is encoded
  std::vector<Job*> continuations_;    // scoring jobs between two parts
  std::list<Projection> spare_;        // list nodes, allocated in advance
  InputBatch batch_;
  std::vector<int32_t> slots_;         // scratch: cache slots of a projected block
  std::vector<int32_t> adapters_;      // scratch: adapter of each row of a projected block
  std::vector<int32_t> rows_;          // scratch: rows of a scored block
  std::vector<PoolSegment> segments_;  // scratch: of PoolOnDevice
  WorkRate encode_rate_{1};            // units of Model::EncodeSlice
  WorkRate project_rate_{32};          // rows; smaller blocks are bound by reading the weights
  WorkRate score_rate_{32};
};

}  // namespace quintet
