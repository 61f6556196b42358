// The output of a command that processes lines (a job): standard output, or a file that a later run
// can continue after an interruption.
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

// How the records of an output file, one for each input line, are delimited.
struct RecordFormat {
  int64_t record_bytes = 0;  // size of each record; 0: a record ends with a newline
  // If set, returns the file's header when it has `records` records. Its size must not depend on
  // their number: a header for 0 records is written first and overwritten in Finish.
  std::function<std::string(int64_t records)> header;
};

class LineOutput {
 public:
  // Opens `path`, or uses standard output if `path` is empty. Output to a name that ends in .gz or
  // .zst is compressed. Without `resume` an existing file is overwritten. With it, the file's
  // complete records are kept, anything after them is cut off, and Write appends. The file stays
  // locked until the destructor. INVALID_ARGUMENT: the file is also the standard input, is in use
  // by another process or cannot be opened; `resume` without a regular file; a header for output
  // that is not an empty regular file.
  static absl::StatusOr<std::unique_ptr<LineOutput>> Open(const std::string& path, bool resume,
                                                          const RecordFormat& format);
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  // Number of records that were kept when the file was opened (`resume`), else 0.
  int64_t kept_records() const { return kept_records_; }
  // Writes complete records. CANCELLED if an interrupt arrives while Write waits because the reader
  // of a pipe is slow; then only a part is written. UNAVAILABLE: the write failed.
  absl::Status Write(absl::string_view records);
  // Ends the compressed data, or overwrites the header with the final number of records. Call it
  // after the last Write.
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
  bool regular_ = false;  // a regular file: writes to it do not block
  bool terminal_ = false;
  int64_t kept_records_ = 0;
  // A compressed file is a sequence of frames, each of which ends after a complete record, so that
  // a run after a kill can continue the file after its last complete frame.
  std::unique_ptr<Compressor> compressor_;  // null: not compressed
  int64_t frame_bytes_ = 0;                 // uncompressed bytes in the current frame
  Clock::time_point frame_begin_;
  std::string buffer_;  // compressed bytes
};

}  // namespace quintet
