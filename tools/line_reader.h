// Reads lines from a file descriptor with a timeout and in bounded memory. Input that is compressed
// with gzip or zstd is recognised by its first bytes and decompressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tools/compression.h"

namespace quintet {

class LineReader {
 public:
  // The descriptor must stay open while the object is used; it is not closed. A line longer than
  // max_line_bytes is skipped and reported as kTooLong.
  LineReader(int fd, size_t max_line_bytes);

  enum class Outcome { kLine, kTooLong, kWait, kEnd, kError };
  // Reads the next line into *line, without "\n" or "\r\n"; the last line of the input may have
  // none. Waits up to timeout_ms (-1: no limit) for input. kWait: no input in that time, or a
  // signal arrived. kError: see error().
  Outcome Next(int timeout_ms, std::string* line);

  // The reason of kError: a failed read, compressed data that is damaged or ends early, or binary
  // data that is not compressed.
  const absl::Status& error() const { return error_; }
  // Bytes read from the descriptor, before decompression.
  int64_t bytes_read() const { return bytes_read_; }
  // Size of a regular file in bytes, counted from where reading began; -1 for pipes and terminals.
  int64_t total_bytes() const { return total_bytes_; }
  // Whether the input is compressed. Valid after the first Next that returned a line.
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
