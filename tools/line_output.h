// The output of a command that processes lines. It is standard output, or a file that a later run
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

// How the records of an output file are delimited. Each input line gives one record.
struct RecordFormat {
  int64_t record_bytes = 0;  // size of each record; 0: a record ends with a newline
  // If set, returns the header of a file with `records` records. The header's size must not depend
  // on the number of records: first a header for 0 records is written, which Finish overwrites.
  std::function<std::string(int64_t records)> header;
};

class LineOutput {
 public:
  // Opens the file `path`, or standard output if `path` is empty. Output to a file whose name ends
  // in .gz or .zst is compressed. Without `resume` an existing file is overwritten. With `resume`
  // the complete records of the file are kept, everything after them is cut off, and Write appends.
  // The file stays locked until the destructor. INVALID_ARGUMENT if the file is also the standard
  // input, is used by another process or cannot be opened; if `resume` is set and the output is not
  // a regular file; if `format` has a header and the output is not an empty regular file or appends
  // (O_APPEND); or if `path` would be compressed and records have a fixed size.
  static absl::StatusOr<std::unique_ptr<LineOutput>> Open(const std::string& path, bool resume,
                                                          const RecordFormat& format);
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  // Number of records that Open kept because of `resume`; otherwise 0.
  int64_t kept_records() const { return kept_records_; }
  // Writes complete records. Returns CANCELLED if an interrupt arrived while Write waited for a
  // slow pipe; then only a part of `records` is written. Returns UNAVAILABLE if the write failed.
  absl::Status Write(absl::string_view records);
  // Must be called after the last Write. If the file has a header, overwrites it with one for the
  // final number of records. If the output is compressed, ends the compressed data.
  absl::Status Finish();

  bool terminal() const { return terminal_; }
  // The file's name, or "standard output".
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
  // A compressed file is a sequence of frames, each of which ends after a complete record. After a
  // kill, a later run can therefore continue the file after its last complete frame.
  std::unique_ptr<Compressor> compressor_;  // null: not compressed
  int64_t frame_bytes_ = 0;                 // uncompressed bytes in the current frame
  Clock::time_point frame_begin_;
  std::string buffer_;  // compressed bytes
};

}  // namespace quintet
