// Reads lines from a file descriptor with a timeout and in bounded memory.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

class LineReader {
 public:
  // Does not close the descriptor. A line longer than max_line_bytes is skipped and reported as
  // kTooLong.
  LineReader(int fd, size_t max_line_bytes);

  enum class Outcome { kLine, kTooLong, kWait, kEnd, kError };
  // Reads the next line, without "\n" or "\r\n"; the last line may lack one. Waits up to timeout_ms
  // (-1: no limit) for input. kWait: no input in that time, or a signal. kError: see errno.
  Outcome Next(int timeout_ms, std::string* line);

  int64_t bytes_read() const { return bytes_read_; }
  // Bytes of a regular file after its start position; -1 for pipes and terminals.
  int64_t total_bytes() const { return total_bytes_; }

 private:
  bool TakeLine(std::string* line, Outcome* outcome);

  int fd_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;    // start of the unread bytes in buffer_
  size_t scanned_ = 0;  // bytes before this offset contain no newline
  bool skipping_ = false, end_ = false;
  int64_t bytes_read_ = 0, total_bytes_ = -1;
};

}  // namespace quintet
