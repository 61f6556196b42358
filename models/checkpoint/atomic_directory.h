// Creates a directory atomically: it appears complete or not at all. Files are written to a hidden
// temporary directory next to the target (".NAME.quintet-tmp-*"); Commit syncs them to disk and
// renames the temporary directory to the target. If the process is killed, the target is the
// complete old directory, the complete new one, or absent. The next run with the same target
// removes the temporary directory that was left behind.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quintet {

// The name of a temporary directory is at most this many bytes longer than the name of its target.
inline constexpr int64_t kTemporaryNameBytes = 32;

struct AtomicDirectoryOptions {
  // True: an existing target is exchanged with the new directory, and then the old directory is
  // deleted. False: an existing target is an error (ALREADY_EXISTS).
  bool replace = false;
  // True: exchange the old and the new directory atomically (renameat2) if the file system can.
  // False, for tests: always use the fallback, which renames the old directory to a temporary name
  // and then the new one to the target. If the process is killed between these renames, the next
  // run restores the old directory.
  bool exchange = true;
};

class AtomicDirectory {
 public:
  // Removes the temporary directories that killed runs with the same target have left behind, and
  // creates a new temporary directory. The temporary directories of running processes are locked
  // (flock) and are kept. The parent of `target` must exist. Errors: ALREADY_EXISTS,
  // FAILED_PRECONDITION (the target is a symbolic link or not a directory), NOT_FOUND (no parent),
  // PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full).
  static absl::StatusOr<AtomicDirectory> Create(const std::string& target,
                                                const AtomicDirectoryOptions& options);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();  // removes path() unless Commit succeeded

  const std::string& path() const { return path_; }  // write plain files here

  // Renames the temporary directory to the target. After an error the target is unchanged, and the
  // destructor removes the temporary directory.
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
