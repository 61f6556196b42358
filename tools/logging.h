// Logging to standard error through spdlog. Log lines never contain the text of prompts or outputs.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

// Sets up logging. `format` is "text" or "json" (one object per line with time, level and message).
// `level` is "debug", "info", "warn" or "error"; lines below it are not logged.
void SetUpLogging(const std::string& format, const std::string& level);

// Makes logging asynchronous: log lines are queued, and a thread writes them to standard error.
// Lines that do not fit into the queue are dropped (server/log_queue.h). Call it after
// SetUpLogging.
void QueueLog();
// Writes a finished line, which must end with a newline, to standard error without adding time or
// level. Once QueueLog has been called, it only queues the line and does not block.
void LogLine(std::string line);
int64_t LogLinesDropped();  // lines dropped so far; 0 before QueueLog

// Logs the reason why the process fails: "quintet: MESSAGE" as text, or with format "json" a log
// line of level error. Waits at most one second until all log lines have been written.
void LogFailure(const std::string& message);

}  // namespace quintet
