#include "models/checkpoint/atomic_directory.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checkpoint_file.h"

namespace quintet {
namespace {

constexpr char kTemporary[] = ".quintet-tmp-";
constexpr char kReplaced[] = ".quintet-old-";

absl::Status ErrnoError(const char* what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

std::string RandomSuffix() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

// Removes a directory tree; symbolic links in it are removed, not followed.
void RemoveTree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

absl::Status Sync(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return ErrnoError("cannot open", path);
  absl::Status status;
  // EINVAL is not an error: it means that this file system does not support fsync of directories.
  if (fsync(fd) != 0 && errno != EINVAL) status = ErrnoError("cannot write to disk", path);
  close(fd);
  return status;
}

absl::Status SyncFiles(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    QT_RETURN_IF_ERROR(Sync(entry.path().string(), O_RDONLY));
  }
  if (error) {
    return absl::InternalError(absl::StrCat("cannot list ", directory, ": ", error.message()));
  }
  return Sync(directory, O_RDONLY | O_DIRECTORY);
}

// Opens and locks a directory. Returns its file descriptor, or -1 if another process has locked it
// or it does not exist.
int LockDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  struct stat opened, named;
  // Check that the name still refers to this directory: another process that had locked it may have
  // removed or renamed it since it was opened.
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &opened) == 0 &&
      lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
      opened.st_dev == named.st_dev) {
    return fd;
  }
  close(fd);
  return -1;
}

// Cleans up after earlier runs that had the target parent/name and were killed. Such a run may have
// renamed the old target to a temporary name to make room for a new directory; the old target is
// then renamed back, unless a target exists. All other temporary directories of the target are
// removed. Directories that another process has locked are skipped.
void CleanUp(const std::string& parent, const std::string& name) {
  std::vector<std::string> temporary, replaced;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    const std::string file = entry.path().filename().string();
    if (absl::StartsWith(file, absl::StrCat(".", name, kTemporary))) {
      temporary.push_back(entry.path().string());
    } else if (absl::StartsWith(file, absl::StrCat(".", name, kReplaced))) {
      replaced.push_back(entry.path().string());
    }
  }
  const std::string target = absl::StrCat(parent, "/", name);
  for (const std::string& path : replaced) {
    const int lock = LockDirectory(path);
    if (lock < 0) continue;
    if (HasEntry(parent, name) || rename(path.c_str(), target.c_str()) != 0) RemoveTree(path);
    close(lock);
  }
  for (const std::string& path : temporary) {
    const int lock = LockDirectory(path);
    if (lock < 0) continue;
    RemoveTree(path);
    close(lock);
  }
}

absl::Status CheckTarget(const std::string& target, bool replace) {
  struct stat info;
  if (lstat(target.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoError("cannot access", target);
  }
  if (S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(target, " is a symbolic link; give the directory itself"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(target, " exists and is not a directory"));
  }
  if (!replace) return absl::AlreadyExistsError(absl::StrCat(target, " exists"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AtomicDirectory> AtomicDirectory::Create(const std::string& target,
                                                        const AtomicDirectoryOptions& options) {
  std::filesystem::path full = std::filesystem::path(target).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();  // "dir/"
  const std::string name = full.filename().string();
  if (name.empty() || name == "." || name == "..") {
    return absl::InvalidArgumentError(absl::StrCat("output directory: '", target, "' has no name"));
  }
  AtomicDirectory directory;
  directory.parent_ = full.has_parent_path() ? full.parent_path().string() : ".";
  directory.name_ = name;
  directory.options_ = options;
  struct stat info;
  if (stat(directory.parent_.c_str(), &info) != 0)
    return ErrnoError("cannot use", directory.parent_);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(directory.parent_, " is not a directory"));
  }
  CleanUp(directory.parent_, name);
  const std::string normal = absl::StrCat(directory.parent_, "/", name);
  QT_RETURN_IF_ERROR(CheckTarget(normal, options.replace));

  // CleanUp of another process may remove the new directory before this process has locked it. In
  // that case try again.
  for (int attempt = 0; attempt < 16 && directory.lock_ < 0; ++attempt) {
    directory.path_ = absl::StrCat(directory.parent_, "/.", name, kTemporary, RandomSuffix());
    if (mkdir(directory.path_.c_str(), 0777) != 0) {
      return ErrnoError("cannot make directory", directory.path_);
    }
    directory.lock_ = LockDirectory(directory.path_);
  }
  if (directory.lock_ < 0) return ErrnoError("cannot lock directory", directory.path_);
  return directory;
}

AtomicDirectory::AtomicDirectory(AtomicDirectory&& other) noexcept
    : parent_(std::move(other.parent_)),
      name_(std::move(other.name_)),
      path_(std::move(other.path_)),
      options_(other.options_),
      lock_(std::exchange(other.lock_, -1)) {}

AtomicDirectory::~AtomicDirectory() {
  if (lock_ < 0) return;
  RemoveTree(path_);  // the directory that was not published
  close(lock_);
}

absl::Status AtomicDirectory::Commit() {
  QT_RETURN_IF_ERROR(SyncFiles(path_));
  QT_RETURN_IF_ERROR(Publish());
  // The target is already in place. This sync only makes the rename durable, so a failure is
  // ignored.
  (void)Sync(parent_, O_RDONLY | O_DIRECTORY);
  RemoveTree(path_);
  close(std::exchange(lock_, -1));
  return absl::OkStatus();
}

absl::Status AtomicDirectory::Publish() {
  const std::string target = absl::StrCat(parent_, "/", name_);
  // Create has checked that the target path may be created or replaced. Check again: other
  // processes may have changed it while files were written to the temporary directory.
  QT_RETURN_IF_ERROR(CheckTarget(target, options_.replace));
  if (!HasEntry(parent_, name_)) {
    if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) return ErrnoError("cannot rename to", target);
    // This file system lacks RENAME_NOREPLACE. If a directory has been created at the target
    // meanwhile, rename replaces it only if it is empty, so nothing is lost.
    if (rename(path_.c_str(), target.c_str()) == 0) return absl::OkStatus();
    return ErrnoError("cannot rename to", target);
  }
  if (options_.exchange) {
    if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) return ErrnoError("cannot replace", target);
  }
  return ReplaceByTwoRenames();
}

absl::Status AtomicDirectory::ReplaceByTwoRenames() {
  const std::string target = absl::StrCat(parent_, "/", name_);
  const std::string old = absl::StrCat(parent_, "/.", name_, kReplaced, RandomSuffix());
  // Lock the old directory. The lock stays with the directory when it is renamed, so CleanUp of
  // another process does not touch it while it has its temporary name.
  const int lock = LockDirectory(target);
  if (lock < 0)
    return absl::UnavailableError(absl::StrCat(target, " is locked by another process"));
  absl::Status status;
  if (rename(target.c_str(), old.c_str()) != 0) {
    status = ErrnoError("cannot replace", target);
  } else if (rename(path_.c_str(), target.c_str()) != 0) {
    status = ErrnoError("cannot rename to", target);
    (void)rename(old.c_str(), target.c_str());
  } else {
    // The new directory must be durable on disk before the old one is removed.
    (void)Sync(parent_, O_RDONLY | O_DIRECTORY);
    RemoveTree(old);
  }
  close(lock);
  return status;
}

}  // namespace quintet
