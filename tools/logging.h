// The process's log: standard error, through spdlog. It never holds text of prompts or outputs.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

// format: "text" or "json" (one object a line: time, level, message); level: "debug", "info",
// "warn", "error".
void SetUpLogging(const std::string& format, const std::string& level);

// From here on no thread waits for standard error: lines are queued for a thread that writes them,
// and dropped when the queue is full (server/log_queue.h). After SetUpLogging.
void QueueLog();
int64_t LogLinesDropped();  // 0 before QueueLog

// Writes why the process fails: "quintet: MESSAGE", or an error of the log in its format "json".
// Returns when all of the log is written, or a second later.
void LogFailure(const std::string& message);

}  // namespace quintet
