// Logging to standard error through spdlog. Logs never contain text of prompts or outputs.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

// Sets up logging. `format`: "text" or "json" (one object per line with time, level and message).
// `level`: "debug", "info", "warn" or "error".
void SetUpLogging(const std::string& format, const std::string& level);

// Makes logging asynchronous: a thread writes queued lines to standard error, and if the queue is
// full, lines are dropped (server/log_queue.h). Call after SetUpLogging.
void QueueLog();
int64_t LogLinesDropped();  // lines dropped so far; 0 before QueueLog

// Writes the reason why the process fails: "quintet: MESSAGE", or with format "json" a log line of
// level error. Waits at most one second until all log lines have been written.
void LogFailure(const std::string& message);

}  // namespace quintet
