// The access log (--access-log): one JSON object per line for each call that has ended. It never
// contains text of inputs or outputs, addresses of clients, or API keys.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/trace_context.h"

namespace quintet {

struct AccessRecord {
  absl::string_view request_id;  // empty: the call ended before it had a valid one
  absl::string_view model;       // empty: the call ended before its model was found
  absl::string_view method;      // "Generate"; empty: not a method of this server
  int code = 0;                  // gRPC status code
  absl::string_view reason;      // ErrorInfo.reason; empty: none
  int64_t input_tokens = 0, output_tokens = 0;
  TraceId trace_id{};    // all bytes 0: none
  int64_t queue_us = 0;  // from submission to the engine until it has started the last request
  int64_t total_us = 0;  // from the arrival of the call until its end
};

// Returns the access-log line, including its newline, of a call that ended at `time`.
std::string AccessLine(const AccessRecord& record, absl::Time time);

class AccessLog {
 public:
  using WriteLine = std::function<void(std::string)>;  // must be thread-safe and must not block

  // `write` is called with each line. If it is null, the access log is off.
  explicit AccessLog(WriteLine write) : write_(std::move(write)) {}
  // Writes the access-log line of the call `record`, with the current time as the end of the call.
  // Thread-safe. Does nothing if there is no memory for the line.
  void Write(const AccessRecord& record) const;

 private:
  const WriteLine write_;
};

}  // namespace quintet
