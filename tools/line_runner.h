// Runs the lines of standard input through the engine, in bounded memory. Reading, tokenizing,
// formatting and writing run in threads of their own, so that the engine's thread does nothing but
// steps. Outputs keep the order of the input; a failed line does not affect the others.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "tools/line_format.h"
#include "tools/line_output.h"
#include "tools/session.h"

namespace quintet {

// The request of one line and the formatter of its result.
struct LineJob {
  Request request;  // RunLines sets the sink
  // Appends the line's output, newline included. Called at most once, in any thread.
  std::function<void(Result result, std::string* out)> format;
};

struct LineCommand {
  // Converts a line to a job, or returns INVALID_ARGUMENT. `number` counts from 1. Called in
  // several threads at the same time.
  std::function<absl::StatusOr<LineJob>(int64_t number, const std::string& line)> parse;
  // Returns the output for a failed line; RunLines also logs the error. As parse.
  std::function<std::string(int64_t number, const absl::Status& error)> format_error;
  RecordFormat record;  // of the output
};

// Maximum number of lines that are read and not yet written, for an engine that runs `max_running`
// sequences. The engine's queue must take as many requests.
int64_t LinesInFlight(int64_t max_running);

// Runs standard input to the output that `flags` name; with --resume without the lines whose
// records that already has. Returns kExitDone, kExitUsage for an output that cannot be opened,
// kExitFailed if a line, reading or writing failed, or kExitInterrupted after SIGINT, SIGTERM or
// SIGHUP; the output is then a prefix of the whole output.
int RunLines(Session& session, const LineFlags& flags, const LineCommand& command);

}  // namespace quintet
