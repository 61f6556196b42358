// The engine of engine.h: step_engine.cc has its queue, admission and the course of a step,
// step_engine_results.cc what becomes of encoded states and decoded tokens, and the ends of
// requests.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "engine/encoder_cache.h"
#include "engine/encoder_runner.h"
#include "engine/engine.h"
#include "engine/job.h"
#include "engine/kv_pool.h"
#include "engine/output_queue.h"
#include "engine/scheduler.h"
#include "engine/step_pace.h"
#include "kernels/out_of_memory.h"

namespace quintet {

struct StepEngineParts {
  Model* model;
  const Tokenizer* tokenizer;
  EngineLimits limits;
  Clock clock;
  StepObserver* observer;
  std::unique_ptr<Decoder> decoder;
  Capacity capacity;
};

class StepEngine : public Engine {
 public:
  explicit StepEngine(StepEngineParts parts)
      : model_(parts.model),
        tokenizer_(parts.tokenizer),
        limits_(parts.limits),
        clock_(std::move(parts.clock)),
        observer_(parts.observer),
        capacity_(parts.capacity),
        decoder_(std::move(parts.decoder)),
        pool_(capacity_.pages, capacity_.page_size),
        scheduler_({capacity_.encode_tokens, capacity_.pages, capacity_.running_sequences}),
        pace_(limits_.prefill_share),
        encoder_cache_(limits_.encoder_cache_bytes),
        encoder_(model_, &encoder_cache_, decoder_->target_scores(), clock_) {
    counters_.pages_total = capacity_.pages;
  }
  ~StepEngine() override;

  absl::StatusOr<RequestId> Submit(Request request) override;
  void Cancel(RequestId id) override;
  EngineCounters counters() const override;
  absl::Status status() const override;
  bool Step() override;
  void WaitForWork(int64_t timeout_us) override;

 private:
  using Jobs = std::unordered_map<RequestId, std::unique_ptr<Job>>;
  struct PendingEncode {
    Job* job;
    EncodedStates states;

    // Encoder outputs that the job needs.
    Tensor PooledStates() const {
      const RowRange rows = PooledRows(job->request.pooling, states.host.dim[0]);
      return states.host.Rows(rows.begin, rows.end);
    }
  };

  absl::Status QueueFull(int64_t tokens) const;  // under mutex_
  absl::StatusOr<RequestId> PlanAndQueue(Request request);
  bool NextCancelled(RequestId* id);
  void AcceptArrivals();
  bool Accept(std::unique_ptr<Job>* job);
  void Reserve(size_t jobs);
  void Expire(int64_t now);
  void Admit(int64_t now);
  void AdmitContinuations(AdmissionBudget* budget);
  bool StartJob(Job* job, int64_t now);
  void Encode(int64_t prefill_us);
  bool HasRunningStreams() const;
  PriorityPressure CurrentPressure() const;
  void OnEncoded(Job* job, const EncodedStates& encoded);
  absl::Status CompletePart(Job* job, const EncodedStates& encoded);
  void CompleteEncodes();
  void Decode(bool streams, int64_t prefill_us);
  void OnStepTokens(const Decoder::StepSize& size, int64_t new_tokens_before, int64_t now);
  void CountToken(Job* job, int64_t now);
  void SendOutputs();
  void NotifyDone(Job* job);
  void FinishOutOfMemory();
  void FailAll(const absl::Status& status);
  void Finish(Job* job, JobState state, const absl::Status& status);
  std::unique_ptr<Job> ReleaseResources(Job* job, JobState state);
  void Notify(Job* job, bool was_queued, const absl::Status& status);

  Model* const model_;
  const Tokenizer* const tokenizer_;
  const EngineLimits limits_;
  const Clock clock_;
  StepObserver* const observer_;
  const Capacity capacity_;

  // Shared with the threads that submit.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Job>> inbox_;
  std::vector<RequestId> cancelled_;          // each once; Submit makes the room
  std::unordered_map<RequestId, bool> live_;  // submitted and not ended: whether cancelled
  EngineCounters counters_;
  int64_t queued_tokens_ = 0;
  RequestId next_id_ = 1;
  absl::Status broken_;  // not OK once the device has failed

  // Statuses that exist before they are needed: to make one allocates.
  const absl::Status out_of_memory_ = OutOfMemory();
  const absl::Status expired_in_queue_ =
      absl::DeadlineExceededError("the deadline passed in the queue");
  const absl::Status expired_running_ =
      absl::DeadlineExceededError("the deadline passed while decoding");
  const absl::Status device_failed_ = absl::UnavailableError("the device failed");

  // The stepping thread's own.
  std::unique_ptr<Decoder> decoder_;
  KvPool pool_;
  Scheduler scheduler_;
  StepPace pace_;
  EncoderCache encoder_cache_;
  EncoderRunner encoder_;
  Jobs jobs_;
  std::vector<Job*> decoding_;                  // in order of admission
  std::vector<Job*> continuations_;             // with the next part of what they score
  std::vector<PendingEncode> pending_encodes_;  // that want their states
  OutputQueue outputs_;
  absl::Status device_status_;  // as encoding found it
  bool continuations_first_ = false;
  int64_t reserved_sequences_ = 0;
  std::vector<std::unique_ptr<Job>> arrivals_;  // scratch of a step, like those below
  std::vector<RequestId> ids_;
  std::vector<Job*> batch_;
  std::vector<DecoderJob> decoder_jobs_;
  std::vector<int64_t> token_gaps_us_;
};

}  // namespace quintet
