// Results of a load run. All times are microseconds of the monotonic clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quintet {

struct RequestOutcome {
  bool measured = false;     // false during the warm-up
  int64_t scheduled_us = 0;  // scheduled arrival; closed loop: when a slot became free
  int64_t sent_us = 0;
  int64_t first_us = -1;  // first message with tokens; -1: no tokens before the end
  int64_t done_us = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  uint32_t num_beams = 1;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;       // ErrorInfo.reason of the error
  bool retry_info = false;  // the error carries a RetryInfo

  bool ok() const { return code == absl::StatusCode::kOk; }
  double e2e_ms() const { return static_cast<double>(done_us - scheduled_us) / 1e3; }
  double late_ms() const { return static_cast<double>(sent_us - scheduled_us) / 1e3; }
  // Returns true if tokens arrived before the end of the request. Only then is ttft_ms (time to
  // first token) meaningful.
  bool streamed() const { return first_us >= 0; }
  double ttft_ms() const { return static_cast<double>(first_us - scheduled_us) / 1e3; }
  bool paced() const { return streamed() && output_tokens > 1; }
  double tpot_ms() const {
    return static_cast<double>(done_us - first_us) / 1e3 / static_cast<double>(output_tokens - 1);
  }
};

struct LoadRecord {
  std::vector<RequestOutcome> outcomes;  // ordered by end time
  std::vector<double> gaps_ms;           // inter-token latencies of measured requests
  int64_t sent = 0;                      // requests sent, including warm-up; all have ended
  // The measurement window begins at the scheduled time of the first measured request (static
  // batching: when that request is sent) and ends when the last request is sent. The members
  // window_* count all requests and tokens that completed within it, including those of warm-up
  // requests.
  int64_t begin_us = 0, end_us = 0;
  int64_t window_requests = 0, window_input_tokens = 0, window_output_tokens = 0;
  bool interrupted = false;

  double window_s() const { return static_cast<double>(end_us - begin_us) / 1e6; }
};

}  // namespace quintet
