// A spdlog sink that never blocks the thread that logs. Lines wait in a bounded queue, and a thread
// writes them to a file descriptor. A line that finds the queue full, or that cannot be written
// (disk full, pipe closed), is dropped and counted; once lines can be written again, one more says
// how many are missing. Thread safe.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "spdlog/sinks/sink.h"

namespace quintet {

class LogQueue : public spdlog::sinks::sink {
 public:
  struct Options {
    int fd = STDERR_FILENO;  // stays the caller's
    int64_t max_bytes = 1 << 20;
    std::chrono::milliseconds flush_timeout{1000};
  };

  explicit LogQueue(const Options& options);
  // Flushes. If that times out, the writing thread stays behind, blocked, until the process ends.
  ~LogQueue() override;

  void log(const spdlog::details::log_msg& message) override;
  // Appends text that is formatted already and ends with a newline.
  void Write(std::string text);
  // Waits until the lines queued so far are written or dropped, for flush_timeout at most.
  void flush() override;
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  // Counts a line that was lost before it reached the sink.
  void CountDropped();
  int64_t dropped_lines() const;

 private:
  struct State;
  static void WriteLines(State* state);

  const Options options_;
  const std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

}  // namespace quintet
