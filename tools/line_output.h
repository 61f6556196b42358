// The output of a job over lines: standard output, or a file that an interrupted job can continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/compression.h"

namespace quintet {

// How the output of one input line is found again in a file.
struct RecordFormat {
  int64_t record_bytes = 0;  // size of each record; 0: a record ends with a newline
  // Not null: returns the header of a file with `records` records, which must not depend on them in
  // size. It is written first, and again with the final number in the end.
  std::function<std::string(int64_t records)> header;
};

class LineOutput {
 public:
  // Opens `path`, or uses standard output if it is empty. A name that ends in .gz or .zst is
  // compressed. Without `resume` an existing file is overwritten. With it, the whole records of the
  // file are kept, anything after them is cut off, and Write appends. The file is locked until the
  // destructor. INVALID_ARGUMENT: the file is the standard input, is in use by another job or
  // cannot be opened; `resume` without a file; a header in a pipe or behind other data.
  static absl::StatusOr<std::unique_ptr<LineOutput>> Open(const std::string& path, bool resume,
                                                          const RecordFormat& format);
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  // Number of records that the file had when it was opened.
  int64_t kept_records() const { return kept_records_; }
  // Writes whole records. Returns early with CANCELLED when Interrupted() and the reader of a pipe
  // does not read. UNAVAILABLE: the write failed.
  absl::Status Write(absl::string_view records);
  // Ends the compressed data or writes the final header. Call it after the last Write.
  absl::Status Finish();

  bool terminal() const { return terminal_; }
  // "standard output", or the file's name.
  const std::string& name() const { return name_; }

 private:
  using Clock = std::chrono::steady_clock;

  LineOutput() = default;
  absl::Status Begin(bool resume);
  absl::Status KeepRecords();
  absl::Status WriteHeader(int64_t records) const;
  absl::Status WriteBytes(absl::string_view bytes);

  std::string name_;
  RecordFormat format_;
  int64_t header_bytes_ = 0;
  int fd_ = -1;
  bool owned_ = false;    // fd_ is closed by the destructor
  bool regular_ = false;  // a regular file, to which writes do not block
  bool terminal_ = false;
  int64_t kept_records_ = 0;
  // A compressed file consists of frames that end after whole records, so that a file of a killed
  // job can be continued after its last whole frame.
  std::unique_ptr<Compressor> compressor_;  // null: not compressed
  int64_t frame_bytes_ = 0;                 // uncompressed bytes in the current frame
  Clock::time_point frame_begin_;
  std::string buffer_;  // compressed bytes
};

}  // namespace quintet
