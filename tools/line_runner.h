// Processes the lines of standard input with the engine, in bounded memory. Reading, tokenizing,
// formatting and writing run in other threads than the engine's, so that the engine's thread only
// runs engine steps. Outputs have the order of the input lines. A failed line does not affect other
// lines.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "tools/line_format.h"
#include "tools/line_output.h"
#include "tools/session.h"

namespace quintet {

// The request that one input line makes, and the function that formats its result.
struct LineJob {
  Request request;  // RunLines sets the sink
  // Appends the output for the line, including the newline, to *out. Called at most once, by any
  // thread.
  std::function<void(Result result, std::string* out)> format;
};

// A second output file, with data about the lines of the first output file.
struct SideOutput {
  std::string path;
  RecordFormat record;
  std::string begin;  // written before the first line
  // Returns what to write to this file for the next line. `output` is what the first output file
  // gets for that line. Called in the order of the lines.
  std::function<std::string(const std::string& output)> of;
};

// Converts line `number` of the input (counted from 1) to a job, or returns INVALID_ARGUMENT.
// Several threads call it at the same time.
using ParseLine = std::function<absl::StatusOr<LineJob>(int64_t number, const std::string& line)>;

struct LineCommand {
  ParseLine parse;
  // Returns the output for a line that failed with `error`. (RunLines logs the error, too.) Several
  // threads call it at the same time.
  std::function<std::string(int64_t number, const absl::Status& error)> format_error;
  RecordFormat record;  // format of the output
  std::optional<SideOutput> side;
};

// Processes the lines of standard input and writes to the output that `flags` select. With
// --resume, skips as many lines as that output already has records. Returns kExitDone; kExitUsage
// if the output cannot be opened; kExitFailed if a line, reading or writing failed; or
// kExitInterrupted after SIGINT, SIGTERM or SIGHUP. After an interrupt the output contains the
// records of the first lines only.
int RunLines(Session& session, const LineFlags& flags, const LineCommand& command);
// Does the same for a command whose output is text or JSON. A failed line gets the output of
// ErrorFormat.
int RunLines(Session& session, const LineFlags& flags, ParseLine parse);

}  // namespace quintet
