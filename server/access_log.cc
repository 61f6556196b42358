#include "server/access_log.h"

#include <new>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "server/json_value.h"

namespace quintet {

std::string AccessLine(const AccessRecord& record, absl::Time time) {
  const JsonValue line = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())},
      {"level", "info"},
      {"message", "call"},
      {"request_id", std::string(record.request_id)},
      {"trace_id", record.trace_id == TraceId{} ? "" : HexText(record.trace_id)},
      {"model", std::string(record.model)},
      {"method", std::string(record.method)},
      {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(record.code))},
      {"reason", std::string(record.reason)},
      {"input_tokens", record.input_tokens},
      {"output_tokens", record.output_tokens},
      {"queue_us", record.queue_us},
      {"total_us", record.total_us}};
  return JsonText(line) + "\n";
}

void AccessLog::Write(const AccessRecord& record) const {
  if (write_ == nullptr) return;
  try {
    write_(AccessLine(record, absl::Now()));
  } catch (const std::bad_alloc&) {
    // There is no memory for the log line: the line is lost, but the call itself does not fail.
  }
}

}  // namespace quintet
