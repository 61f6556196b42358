// Reads lines from a file descriptor, with a timeout and in bounded memory. Recognises input that
// is compressed with gzip or zstd by its first bytes and decompresses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tools/compression.h"

namespace quintet {

class LineReader {
 public:
  // `fd` must stay open while this object is used; the object does not close it. A line of more
  // than `max_line_bytes` bytes is skipped and reported as kTooLong.
  LineReader(int fd, size_t max_line_bytes);

  enum class Outcome { kLine, kTooLong, kWait, kEnd, kError };
  // Reads the next line into *line, without its "\n" or "\r\n". The last line of the input may lack
  // a newline. Waits up to timeout_ms milliseconds for input (-1: no limit). kWait: no complete
  // line arrived in that time, or a signal interrupted the wait. kError: see error().
  Outcome Next(int timeout_ms, std::string* line);

  // The reason of kError: a read failed, compressed data is damaged or ends early, or the input is
  // binary data that is not compressed.
  const absl::Status& error() const { return error_; }
  // Number of bytes read from the descriptor, before decompression.
  int64_t bytes_read() const { return bytes_read_; }
  // For a regular file, its size in bytes from the position where reading began; -1 for pipes and
  // terminals.
  int64_t total_bytes() const { return total_bytes_; }
  // Whether the input is compressed. Known after Next has returned the first line.
  bool compressed() const { return decompressor_ != nullptr; }

 private:
  enum class Fill { kMore, kWait, kError };

  bool TakeLine(std::string* line, Outcome* outcome);
  Fill FillBuffer(int timeout_ms);
  Fill Read(int timeout_ms, std::string* to);
  Fill Decompress();
  void DetectCompression();

  int fd_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;    // start of the unread bytes in buffer_
  size_t scanned_ = 0;  // bytes before this offset contain no newline
  bool skipping_ = false;
  bool end_ = false;                            // buffer_ gets no more bytes
  bool fd_end_ = false;                         // the descriptor is at its end
  bool detected_ = false;                       // whether the input is compressed is known
  bool checked_ = false;                        // whether the input is text is known
  std::unique_ptr<Decompressor> decompressor_;  // null if the input is not compressed
  std::string compressed_;                      // bytes that have not been decompressed yet
  int64_t bytes_read_ = 0, total_bytes_ = -1;
  absl::Status error_;
};

}  // namespace quintet
