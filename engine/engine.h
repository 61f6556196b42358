// The engine: requests join and leave a running batch. Any thread submits and cancels; one thread
// steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/clock.h"
#include "engine/request.h"
#include "models/model.h"
#include "models/tokenizer.h"

namespace quintet {

struct EngineLimits {
  int64_t max_queue_requests = 256;
  int64_t max_queue_tokens = 262144;
  int64_t max_running_sequences = 256;  // each beam counts; <= model limits' max_step_sequences
  // Time for encoding inputs and reading prompts in a step, as a share of what decoding takes,
  // while streams are running; 0: no limit.
  double prefill_share = 0.0;
  int64_t encoder_cache_bytes = 0;  // 0: off
  // Whether steps run ahead (engine/decoder.h); unset: where a device works beside the host.
  std::optional<bool> async_scheduling;
};

struct EngineCounters {
  int64_t accepted = 0, running = 0, waiting = 0, finished = 0, cancelled = 0, failed = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, steps = 0;
  int64_t pages_used = 0, pages_total = 0;
  int64_t encoder_cache_queries = 0, encoder_cache_hits = 0;
};

// What one decoder step did. Valid during the call.
struct StepReport {
  int64_t sequences = 0;  // in the step; each beam counts
  // For every request that got a token, except its first: the time since the one before.
  absl::Span<const int64_t> token_gaps_us;
};

// Called after each decoder step, on the stepping thread; must not block nor call the engine.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const StepReport& report) = 0;
};

using RequestId = uint64_t;

class Engine {
 public:
  // `model`, `tokenizer` (null: results carry ids only, stop strings are refused) and `observer`
  // (null: none) outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Model* model, const Tokenizer* tokenizer,
                                                        const EngineLimits& limits,
                                                        Clock clock = MonotonicMicros,
                                                        StepObserver* observer = nullptr);
  // Requests still inside end UNAVAILABLE.
  virtual ~Engine() = default;

  // Thread safe. RESOURCE_EXHAUSTED when the queue is full; INVALID_ARGUMENT when the request can
  // never fit, holds an id out of range or asks for a head the model lacks (FAILED_PRECONDITION).
  // On OK the sink will be called exactly once.
  virtual absl::StatusOr<RequestId> Submit(Request request) = 0;
  // Thread safe. The request ends CANCELLED at the beginning of the next step; unknown ids are
  // ignored.
  virtual void Cancel(RequestId id) = 0;
  virtual EngineCounters counters() const = 0;
  // Thread safe. Not OK once the device has failed: requests end INTERNAL or UNAVAILABLE, and new
  // ones are refused.
  virtual absl::Status status() const = 0;

  // One step: end what was cancelled or is past its deadline (DEADLINE_EXCEEDED, counted as
  // failed), admit, encode within the time allowed, decode one token for every running sequence,
  // search, deliver: on a GPU what a step found is delivered by the next one, once that is with the
  // device. Beside requests of a higher priority others rest in most steps (PriorityThrottle).
  // False when there is nothing left to do. One thread at a time.
  virtual bool Step() = 0;
  // Blocks until there is work or `timeout_us` has passed.
  virtual void WaitForWork(int64_t timeout_us) = 0;
};

}  // namespace quintet
