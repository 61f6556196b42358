// A directory that appears whole or not at all. Files are written into a hidden sibling
// (".NAME.quintet-tmp-*"); Commit syncs them and puts the sibling in the target's place by one
// rename. A process killed at any moment leaves the old directory or none, never a partial one; the
// sibling it leaves behind is removed by the next run that writes the same target.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quintet {

// By which the sibling's name is longer than the target's, at most.
inline constexpr int64_t kTemporaryNameBytes = 32;

struct AtomicDirectoryOptions {
  bool replace =
      false;  // an existing target is exchanged and then deleted; otherwise it is ALREADY_EXISTS
  // False takes the path of file systems without an atomic exchange: two renames, and between them
  // the old directory lies in a sibling from which the next run restores it.
  bool exchange = true;
};

class AtomicDirectory {
 public:
  // Cleans up after killed runs, then makes the sibling. Siblings of running processes are locked
  // (flock) and stay. The parent directory must exist. Errors: ALREADY_EXISTS, FAILED_PRECONDITION
  // (the target is a symbolic link or no directory), NOT_FOUND (no parent), PERMISSION_DENIED,
  // RESOURCE_EXHAUSTED (disk full).
  static absl::StatusOr<AtomicDirectory> Create(const std::string& target,
                                                const AtomicDirectoryOptions& options);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();  // without a Commit the sibling is removed

  const std::string& path() const { return path_; }  // write here; plain files only

  // After an error the target is as before and the sibling is removed with this object.
  absl::Status Commit();

 private:
  AtomicDirectory() = default;
  absl::Status Publish();
  absl::Status ReplaceByTwoRenames();

  std::string parent_, name_, path_;
  AtomicDirectoryOptions options_;
  int lock_ = -1;  // open on path_, flocked
};

}  // namespace quintet
