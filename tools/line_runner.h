// Runs lines of standard input through the engine in bounded memory. Results keep the input order;
// a failed line does not affect the others.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "tools/session.h"

namespace quintet {

// The request of one line and the formatter of its result.
struct LineJob {
  Request request;  // RunLines sets the sink
  // Appends the line's output, newline included.
  std::function<void(const Result& result, std::string* out)> format;
};

struct LineCommand {
  // Converts a line to a job, or returns INVALID_ARGUMENT. `number` counts from 1.
  std::function<absl::StatusOr<LineJob>(int64_t number, const std::string& line)> parse;
  // Returns the output for a failed line; RunLines also logs the error.
  std::function<std::string(int64_t number, const absl::Status& error)> format_error;
};

// Runs standard input through the engine to standard output. Returns kExitDone, kExitFailed if a
// line, reading or writing failed, or kExitInterrupted after SIGINT.
int RunLines(Session& session, const LineCommand& command);

}  // namespace quintet
