// Sends a planned load to a target and records the responses.
//
// Open loop (LoadShape::request_rate > 0): each request is sent at its scheduled time, however many
// are in flight; latencies count from the scheduled time. Closed loop: the next request is sent
// when one ends. Static batching: requests arrive as in an open loop, wait until the previous batch
// has ended, and are then sent together, at most `static_batch` of them. A padded batch is a
// rectangle: prompts of random ids are padded to the longest prompt of the batch, and every request
// generates as many tokens as the batch's longest output. Only the tokens that each request asked
// for are counted.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "tools/load/plan.h"
#include "tools/load/record.h"

namespace quintet {

struct Pacing {
  int64_t concurrency = 0;   // closed loop: requests in flight; 0: open loop
  int64_t static_batch = 0;  // static batching: maximum batch size; 0: off
  bool padded = false;       // pad static batches
  int64_t warmup = 0;        // unmeasured requests at the start
  int64_t requests = 0;      // measured requests; 0: limited by duration_s only
  double duration_s = 0;     // time in which measured requests are sent; 0: no limit
};

struct RequestEnd {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;
  bool retry_info = false;
  int64_t input_tokens = 0, output_tokens = 0;
};

// Receives the events of requests. LoadTarget::Poll calls it. at_us: time of the event in
// microseconds, on the clock of MonotonicMicros.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  virtual void OnTokens(uint64_t id, int64_t tokens, int64_t at_us) = 0;
  // Called once per request, after its last OnTokens. An implementation may send the next request
  // from here.
  virtual void OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) = 0;
};

// A server or an engine to which the driver sends the load.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // Sends a request without blocking. May be called from any thread, also from LoadObserver::OnEnd.
  virtual void Send(uint64_t id, const PlannedRequest& request) = 0;
  // Waits up to `timeout_us` microseconds for events and passes them to the observer. Only one
  // thread may call it.
  virtual void Poll(int64_t timeout_us, LoadObserver* observer) = 0;
};

// Runs the load. Returns when every request that was sent has ended. After an interrupt (SIGINT,
// ...) no more requests are sent. Pacing::requests or Pacing::duration_s must be set.
LoadRecord RunLoad(const Pacing& pacing, LoadPlan* plan, LoadTarget* target);

}  // namespace quintet
