// What a load run observed. All times are microseconds of the monotonic clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quintet {

struct RequestOutcome {
  bool measured = false;     // not part of the warm-up
  int64_t scheduled_us = 0;  // due; in a closed loop when its turn came
  int64_t sent_us = 0;
  int64_t first_us = -1;  // first message with tokens; -1: none before the end
  int64_t done_us = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason;       // ErrorInfo.reason
  bool retry_info = false;  // the refusal said when to come again

  bool ok() const { return code == absl::StatusCode::kOk; }
  double e2e_ms() const { return static_cast<double>(done_us - scheduled_us) / 1e3; }
  double late_ms() const { return static_cast<double>(sent_us - scheduled_us) / 1e3; }
  // Whether tokens came before the end, so that there is a first token and a pace to speak of.
  bool streamed() const { return first_us >= 0; }
  double ttft_ms() const { return static_cast<double>(first_us - scheduled_us) / 1e3; }
  bool paced() const { return streamed() && output_tokens > 1; }
  double tpot_ms() const {
    return static_cast<double>(done_us - first_us) / 1e3 / static_cast<double>(output_tokens - 1);
  }
};

struct LoadRecord {
  std::vector<RequestOutcome> outcomes;  // in the order of their ends
  std::vector<double> gaps_ms;           // between messages of one stream, of measured requests
  int64_t sent = 0;                      // warm-up included; all of them have ended
  // From the first measured request's due time (one batch at a time: its sending) to the last one's
  // sending: what arrived in between, whichever request it belongs to.
  int64_t begin_us = 0, end_us = 0;
  int64_t window_requests = 0, window_input_tokens = 0, window_output_tokens = 0;
  bool interrupted = false;

  double window_s() const { return static_cast<double>(end_us - begin_us) / 1e6; }
};

}  // namespace quintet
