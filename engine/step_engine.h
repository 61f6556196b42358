// The implementation of Engine. RequestTable holds the state that threads share; JobTable holds the
// jobs and ends them. This class only decides what each step admits, encodes and decodes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/decoder.h"
#include "engine/encoder_cache.h"
#include "engine/encoder_runner.h"
#include "engine/engine.h"
#include "engine/job.h"
#include "engine/job_table.h"
#include "engine/pooling.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/step_pace.h"

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
  explicit StepEngine(StepEngineParts parts);

  absl::StatusOr<RequestId> Submit(Request request) override;
  void Cancel(RequestId id) override { requests_.Cancel(id); }
  EngineCounters counters() const override { return requests_.counters(); }
  absl::Status status() const override { return requests_.status(); }
  bool Step() override;
  void WaitForWork(int64_t timeout_us) override { requests_.WaitForWork(timeout_us); }

 private:
  absl::StatusOr<RequestId> PlanAndAdd(Request request);
  void Reserve(size_t jobs);
  void Admit(int64_t now);
  bool MoreWillDecode(int64_t free_before) const;
  void StartAdmitted(int64_t now);
  bool DecodeOrAddToEncode(Job* job, int64_t now);
  void StartDecoding(Job* job);
  void AdmitContinuations(AdmissionBudget* budget);
  void Encode(int64_t prefill_us);
  void FailEncodes(std::vector<Job*>* jobs);
  bool HasRunningStreams() const;
  void OnEncoded(Job* job, const EncodedStates& encoded);
  absl::Status CompletePart(Job* job, const EncodedStates& encoded);
  void CompleteEncodes();
  void Decode(bool streams, int64_t prefill_us);
  bool OnTokens(const Decoder::StepSize& size, int64_t now);
  void CountToken(Job* job, int64_t now);

  Model* const model_;
  const Tokenizer* const tokenizer_;
  const Clock clock_;
  StepObserver* const observer_;
  const Capacity capacity_;
  const int64_t admission_sequences_, max_admission_delay_steps_;
  const bool encode_before_decoding_;

  RequestTable requests_;  // the only member that other threads use

  std::unique_ptr<Decoder> decoder_;
  StepPace pace_;
  EncoderCache encoder_cache_;
  EncoderRunner encoder_;
  JobTable jobs_;
  PoolingQueue pooling_;
  absl::Status encode_status_;        // device status after the encode phase
  bool continuations_first_ = false;  // continuations precede new requests in the next batch
  // Whether the next decoder step waits until further encoder batches have been encoded
  // (EngineLimits::encode_before_decoding).
  bool filling_ = false;
  int64_t delayed_steps_ = 0;  // steps since the last admission in which requests have waited

  // Lists that are used within one step. Their memory is reserved for all jobs, so that steps do
  // not allocate.
  std::vector<Job*> admitted_;          // jobs that the scheduler admitted
  std::vector<Job*> encode_batch_;      // inputs of the next encoder batch
  std::vector<Job*> failed_encodes_;    // jobs in the encoder when an allocation failed
  std::vector<Job*> done_;              // jobs whose last token this step chose
  std::vector<int64_t> token_gaps_us_;  // becomes StepReport::token_gaps_us
};

}  // namespace quintet
