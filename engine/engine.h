// The inference engine with continuous batching: requests join and leave the running batch at every
// step. Any thread may submit and cancel; one thread calls Step.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "engine/clock.h"
#include "engine/request.h"
#include "models/model.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

struct EngineLimits {
  int64_t max_queue_requests = 256;
  int64_t max_queue_tokens = 262144;
  int64_t max_running_sequences = 256;  // each beam counts; capped by max_step_sequences
  // While any sequence generates, a step may spend additional time on encoding and prefill: at most
  // this fraction of the time that it spends on decoding. 0: no limit.
  double prefill_share = 0.0;
  // While any request decodes, new requests are admitted only when there is room for at least this
  // many further sequences (max_running_sequences minus those that run), or after
  // max_admission_delay_steps. This saves time because requests that are admitted together share
  // encoder batches: on a GPU, encoding a few inputs takes almost as long as encoding hundreds.
  // Values above max_running_sequences have the same effect as max_running_sequences.
  int64_t admission_sequences = 1;
  // Maximum number of steps for which new requests wait until there is room for
  // admission_sequences further sequences. 0: they do not wait.
  int64_t max_admission_delay_steps = std::numeric_limits<int64_t>::max();
  // Whether the next decoder step waits until all waiting requests that fit are encoded: a decoder
  // step on a GPU takes almost as long with few sequences as with many. Increases throughput and
  // the time between tokens.
  bool encode_before_decoding = false;
  int64_t encoder_cache_bytes = 0;  // 0: off
  // Async scheduling (engine/decoder.h). Unset: on for a GPU, off for a CPU.
  std::optional<bool> async_scheduling;
};

struct EngineCounters {
  int64_t accepted = 0, running = 0, waiting = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0;
  int64_t pages_used = 0, pages_total = 0;
  int64_t encoder_cache_queries = 0, encoder_cache_hits = 0;
};

// Report of one decoder step; token_gaps_us is valid only during OnStep.
struct StepReport {
  int64_t sequences = 0;  // sequences in the step; each beam counts
  // For each request that got a token other than its first: microseconds since its previous token.
  std::span<const int64_t> token_gaps_us;
};

// Called after each decoder step on the stepping thread. Must not block or call the engine.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const StepReport& report) = 0;
};

using RequestId = uint64_t;

class Engine {
 public:
  // `model`, `tokenizer` and `observer` must outlive the engine. If `tokenizer` is null, results
  // have ids but no text, and stop strings are refused. `observer` may be null.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Model* model, const Tokenizer* tokenizer,
                                                        const EngineLimits& limits,
                                                        Clock clock = MonotonicMicros,
                                                        StepObserver* observer = nullptr);
  // The destructor ends all unfinished requests with UNAVAILABLE.
  virtual ~Engine() = default;

  // Submits a request and returns its id. RESOURCE_EXHAUSTED when the queue is full.
  // INVALID_ARGUMENT when the request contains a token id out of range or needs more than the
  // engine's total resources; FAILED_PRECONDITION when the model lacks the head that the request
  // needs. On OK the sink's OnDone is called exactly once. Thread safe.
  virtual absl::StatusOr<RequestId> Submit(Request request) = 0;
  // Cancels a request: it ends CANCELLED at the beginning of the next step. Ignores unknown ids.
  // Thread safe.
  virtual void Cancel(RequestId id) = 0;
  virtual EngineCounters counters() const = 0;
  // The engine's status: not OK once the device has failed. Running requests then end INTERNAL,
  // queued ones UNAVAILABLE, and Submit refuses new ones. Thread safe.
  virtual absl::Status status() const = 0;

  // Runs one step: ends cancelled requests and those past their deadline (DEADLINE_EXCEEDED,
  // counted as failed), admits new ones, encodes within the time allowed, decodes and samples one
  // token for every running sequence, and delivers the tokens. With async scheduling it first
  // enqueues the next decoder step, and then delivers the tokens of the previous call. Lower
  // priorities are skipped in most steps while higher ones run (PriorityThrottle). Returns false
  // when no unfinished requests are left. Only one thread at a time may call it.
  virtual bool Step() = 0;
  // Blocks until there is an unfinished or a cancelled request, or `timeout_us` microseconds have
  // passed. Called by the stepping thread.
  virtual void WaitForWork(int64_t timeout_us) = 0;
};

}  // namespace quintet
