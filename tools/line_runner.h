// Drives the engine with lines of standard input: bounded memory, results in input order, one bad
// line never loses the others.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "tools/session.h"

namespace quintet {

// What becomes of one line.
struct LineJob {
  Request request;  // the sink is set by the runner
  // Appends the line's output, newline included.
  std::function<void(const Result& result, std::string* out)> format;
};

struct LineCommand {
  // INVALID_ARGUMENT when the line cannot become a request. `number` counts from 1.
  std::function<absl::StatusOr<LineJob>(int64_t number, const std::string& line)> parse;
  // What stands in the output for a line that failed; the error itself is also logged.
  std::function<std::string(int64_t number, const absl::Status& error)> format_error;
};

// Runs standard input through the engine to standard output. kExitDone, kExitFailed when any line
// failed (or reading or writing did), kExitInterrupted after SIGINT.
int RunLines(Session& session, const LineCommand& command);

}  // namespace quintet
