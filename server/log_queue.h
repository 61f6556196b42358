// A spdlog sink that never blocks the logging thread. A background thread writes the lines of a
// bounded queue to a file descriptor. A line is dropped and counted if the queue is full or if the
// write fails (disk full, pipe closed). When writing succeeds again, an additional line reports the
// number of dropped lines. Thread-safe.
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
    int fd = STDERR_FILENO;  // owned by the caller
    int64_t max_bytes = 1 << 20;
    std::chrono::milliseconds flush_timeout{1000};
  };

  explicit LogQueue(const Options& options);
  // The destructor waits, as flush does, until all queued lines are written or dropped. If this
  // times out, the blocked writing thread keeps running until the process ends.
  ~LogQueue() override;

  void log(const spdlog::details::log_msg& message) override;
  // Queues text that is already formatted and ends with a newline.
  void Write(std::string text);
  // Waits until all lines queued so far are written or dropped, at most for flush_timeout.
  void flush() override;
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

  // Counts a line that was lost before it reached this sink.
  void CountDropped();
  int64_t dropped_lines() const;

 private:
  struct State;
  static void WriteLines(State* state);

  const Options options_;
  const std::shared_ptr<State> state_;  // shared with the writing thread, which may live longer
};

}  // namespace quintet
