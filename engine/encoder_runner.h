// Whole inputs under way: one packed batch in slices, then what jobs take from its states, block by
// block: decoding ones keys and values, scoring ones log-probabilities. The stepping thread's own.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
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
  // States of finished inputs are put into `cache`. All outlive the object.
  EncoderRunner(Model* model, EncoderCache* cache, TargetScores* scores, Clock clock);

  // Reserves memory for `jobs` jobs; up to that number only the model allocates later.
  void Reserve(size_t jobs);
  // Appends every job inside, for callers that end them after std::bad_alloc. Jobs that began with
  // the same batch end together: nothing of it can be continued.
  void Jobs(std::vector<Job*>* jobs) const;

  // Whether the model holds a batch: no other may begin.
  bool active() const;
  // The highest class of the jobs inside, if any.
  std::optional<Priority> HighestPriority() const;
  // Starts a batch with the inputs of `jobs`; of scoring ones with their next parts.
  void Begin(absl::Span<Job* const> jobs);
  // The job's input is known: its states need no encoding.
  void AddCached(Job* job, EncodedStates encoded);
  // A scoring job whose next part waits for a later batch.
  void AddContinuation(Job* job) { continuations_.push_back(job); }
  bool has_continuations() const { return !continuations_.empty(); }
  // Offers every such job to `take`, in order, and drops those for which it returns true.
  void TakeContinuations(absl::FunctionRef<bool(Job* job)> take);
  // The job has ended: its rows are computed still, but go nowhere.
  void Remove(const Job* job);

  // Works for about `budget_us`, one slice at least, and hands out the jobs that are ready: their
  // states [rows, d_model] f32 are there, valid until the next Begin or while their owner lives,
  // and so are the keys and values in their source slots, or the scores of their parts.
  void Advance(int64_t budget_us,
               absl::FunctionRef<void(Job* job, const EncodedStates& states)> ready);

 private:
  struct Input {
    Job* job;
    int64_t begin, end;  // rows of the batch
  };
  struct Projection {
    Job* job;
    EncodedStates encoded;
    int64_t first_row = 0;  // in the batch
    int64_t rows_done = 0;  // projected, or scored
  };

  void AddProjection(Projection projection);
  void Encode(int64_t budget_us);
  Tensor EnqueueDownload(const Input& input) const;
  // How many of projections_, from the first on, are complete then.
  int64_t Project(int64_t budget_us);
  int64_t AppendNeighbours(int64_t room, Tensor* states);
  bool ScoreSome(Projection* scoring, int64_t budget_us);

  Model* const model_;
  EncoderCache* const cache_;
  TargetScores* const scores_;
  const Clock clock_;
  std::vector<Input> inputs_;          // being encoded
  std::list<Projection> projections_;  // encoded
  std::vector<Job*> continuations_;    // scoring jobs between two parts
  std::list<Projection> spare_;        // nodes for further ones
  InputBatch batch_;
  std::vector<int32_t> slots_, rows_;
  WorkRate encode_rate_{1};    // units of Model::EncodeSlice
  WorkRate project_rate_{32};  // rows: fewer read all weights for little
  WorkRate score_rate_{32};
};

}  // namespace quintet
