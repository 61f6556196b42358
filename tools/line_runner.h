// Processes the lines of standard input with the engine, in bounded memory. Reading, tokenizing,
// formatting and writing run in their own threads, so that the engine's thread only runs engine
// steps. Outputs have the order of the input; a failed line does not affect the others.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "tools/line_format.h"
#include "tools/line_output.h"
#include "tools/session.h"

namespace quintet {

// The request made from one line, and the formatter of its result.
struct LineJob {
  Request request;  // RunLines sets the sink
  // Appends the line's output, newline included. Called at most once, in any thread.
  std::function<void(Result result, std::string* out)> format;
};

struct LineCommand {
  // Converts input line `number` (counted from 1) to a job, or returns INVALID_ARGUMENT. Called in
  // several threads at the same time.
  std::function<absl::StatusOr<LineJob>(int64_t number, const std::string& line)> parse;
  // Returns the output for a failed line, whose error RunLines also logs. Called in several threads
  // at the same time.
  std::function<std::string(int64_t number, const absl::Status& error)> format_error;
  RecordFormat record;  // of the output
};

// Processes standard input and writes to the output that `flags` select; with --resume, skips the
// lines whose records that output already has. Returns kExitDone, kExitUsage for an output that
// cannot be opened, kExitFailed if a line, reading or writing failed, or kExitInterrupted after
// SIGINT, SIGTERM or SIGHUP; then the output contains the records of the first lines.
int RunLines(Session& session, const LineFlags& flags, const LineCommand& command);

}  // namespace quintet
