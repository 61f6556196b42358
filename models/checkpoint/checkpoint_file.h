// A file of a checkpoint that stays open. Files are untrusted and may be truncated while they are
// read: data is read with pread, so truncation is an error, not a SIGBUS.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quintet {

// Returns whether `directory` has an entry `name`. Symbolic links count, even broken ones.
bool HasEntry(const std::string& directory, const std::string& name);

// Immutable after Open and thread safe.
class CheckpointFile {
 public:
  // Opens the regular file `path`; `name` names it in messages and must be printable. A symbolic
  // link is refused unless `follow_symlinks` is true or the link stays within a repository's folder
  // of a hub cache (ResolveLink). Returns NOT_FOUND if there is no such file, INVALID_ARGUMENT if
  // it cannot be read.
  static absl::StatusOr<CheckpointFile> Open(const std::string& path, const std::string& name,
                                             bool follow_symlinks);

  CheckpointFile(CheckpointFile&& other) noexcept { *this = std::move(other); }
  CheckpointFile& operator=(CheckpointFile&& other) noexcept;
  ~CheckpointFile();

  const std::string& name() const { return name_; }
  int64_t bytes() const { return bytes_; }  // size when the file was opened

  // Copies bytes [offset, offset + bytes) of the file to `destination`. Returns INVALID_ARGUMENT if
  // the file is shorter than offset + bytes.
  absl::Status Read(int64_t offset, int64_t bytes, void* destination) const;
  // Reads the whole file and calls `take` for each block of bytes. Stops when `take` returns false;
  // *go_on is then false.
  absl::Status ReadAll(absl::FunctionRef<bool(const void* data, int64_t bytes)> take,
                       bool* go_on) const;

 private:
  CheckpointFile() = default;

  std::string name_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

}  // namespace quintet
