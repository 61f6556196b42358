// Creates a directory atomically: it appears complete or not at all. Files are written to a hidden
// sibling (".NAME.quintet-tmp-*"); Commit syncs them and renames the sibling to the target. If the
// process is killed, the target is the old directory or does not exist, but is never partial. The
// next run with the same target removes a sibling that was left behind.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quintet {

// The sibling's name is at most this much longer than the target's.
inline constexpr int64_t kTemporaryNameBytes = 32;

struct AtomicDirectoryOptions {
  // Replace an existing target by an exchange, then delete the old one. If false: ALREADY_EXISTS.
  bool replace = false;
  // False selects the method for file systems without an atomic exchange: two renames. Between them
  // the old directory is in a sibling, from which the next run restores it.
  bool exchange = true;
};

class AtomicDirectory {
 public:
  // Cleans up after killed runs, then creates the sibling. Siblings of running processes are locked
  // (flock) and are kept. The parent directory must exist. Errors: ALREADY_EXISTS,
  // FAILED_PRECONDITION (the target is a symbolic link or not a directory), NOT_FOUND (no parent),
  // PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full).
  static absl::StatusOr<AtomicDirectory> Create(const std::string& target,
                                                const AtomicDirectoryOptions& options);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();  // removes the sibling unless Commit succeeded

  const std::string& path() const { return path_; }  // write plain files here

  // After an error the target is unchanged and the destructor removes the sibling.
  absl::Status Commit();

 private:
  AtomicDirectory() = default;
  absl::Status Publish();
  absl::Status ReplaceByTwoRenames();

  std::string parent_, name_, path_;
  AtomicDirectoryOptions options_;
  int lock_ = -1;  // file descriptor of path_, locked with flock
};

}  // namespace quintet
