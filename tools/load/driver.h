// Sends a planned load to a target and records what comes back.
//
// Open loop (the shape has a rate): each request is sent when it is due, however many are under
// way; what is sent late is measured from when it was due. Closed loop: the next one is sent when
// one ends. One batch at a time: requests fall due as in an open loop, wait until all of the last
// batch have ended, and then leave together, up to a batch of them. A padded batch is a rectangle:
// random inputs are drawn out to the longest of them, every row is computed until the longest has
// ended, and only the tokens that a request asked for itself are counted.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "tools/load/plan.h"
#include "tools/load/record.h"

namespace quintet {

struct Pacing {
  int64_t concurrency = 0;   // closed loop of so many; 0: open loop
  int64_t static_batch = 0;  // one batch of up to so many at a time; 0: no batches
  bool padded = false;       // the batches are
  int64_t warmup = 0;        // first requests that are not measured
  int64_t requests = 0;      // measured ones; 0: as many as fit the time
  double duration_s = 0;     // how long to send measured ones; 0: no limit
};

struct RequestEnd {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;
  bool retry_info = false;
  int64_t input_tokens = 0, output_tokens = 0;
};

// Hears what becomes of requests, and when that was (MonotonicMicros); called from
// LoadTarget::Poll.
class LoadObserver {
 public:
  virtual ~LoadObserver() = default;
  virtual void OnTokens(uint64_t id, int64_t tokens, int64_t at_us) = 0;
  // Once, last; may send the next.
  virtual void OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) = 0;
};

// Something that answers requests.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // Any thread, also from within OnEnd. Must not block.
  virtual void Send(uint64_t id, const PlannedRequest& request) = 0;
  // Waits up to `timeout_us` for something to happen and tells the observer. One thread.
  virtual void Poll(int64_t timeout_us, LoadObserver* observer) = 0;
};

// Returns when every request sent has ended; an interrupt ends the sending early. Needs one bound:
// a number of requests or a time.
LoadRecord RunLoad(const Pacing& pacing, LoadPlan* plan, LoadTarget* target);

}  // namespace quintet
