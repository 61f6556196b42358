// Logging to standard error through spdlog. Logs never contain text of prompts or outputs.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

// format: "text" or "json" (one object per line: time, level, message). level: "debug", "info",
// "warn", "error".
void SetUpLogging(const std::string& format, const std::string& level);

// Makes logging asynchronous: a writer thread writes queued lines to standard error, and lines are
// dropped if the queue is full (server/log_queue.h). Call after SetUpLogging.
void QueueLog();
int64_t LogLinesDropped();  // 0 before QueueLog

// Writes why the process fails: "quintet: MESSAGE", or a log line of level error with format
// "json". Returns when the whole log is written, after at most one second.
void LogFailure(const std::string& message);

}  // namespace quintet
