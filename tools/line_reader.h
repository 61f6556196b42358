// Lines of a file descriptor, without waiting when there is other work to do and in bounded memory.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

class LineReader {
 public:
  // The descriptor stays open. A longer line than max_line_bytes is skipped to its end and
  // reported.
  LineReader(int fd, size_t max_line_bytes);

  enum class Outcome { kLine, kTooLong, kWait, kEnd, kError };
  // The next line without its "\n" or "\r\n"; a last line need not end in one. Waits up to
  // timeout_ms (-1: for ever) for input and answers kWait when there was none or a signal came.
  // kError: errno says why.
  Outcome Next(int timeout_ms, std::string* line);

  int64_t bytes_read() const { return bytes_read_; }
  // Size of a regular file from where reading began; -1 for pipes and terminals.
  int64_t total_bytes() const { return total_bytes_; }

 private:
  bool TakeLine(std::string* line, Outcome* outcome);

  int fd_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;    // of what is not yet taken from buffer_
  size_t scanned_ = 0;  // no newline before here
  bool skipping_ = false, end_ = false;
  int64_t bytes_read_ = 0, total_bytes_ = -1;
};

}  // namespace quintet
