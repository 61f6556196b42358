#include "models/checkpoint/checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"

namespace quintet {

bool HasEntry(const std::string& directory, const std::string& name) {
  struct stat status;
  return lstat((std::filesystem::path(directory) / name).c_str(), &status) == 0;
}

CheckpointFile& CheckpointFile::operator=(CheckpointFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

CheckpointFile::~CheckpointFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<CheckpointFile> CheckpointFile::Open(const std::string& path,
                                                    const std::string& name, bool follow_symlinks) {
  std::string target = path;
  if (!follow_symlinks) {
    QT_ASSIGN_OR_RETURN(target, ResolveLink(path));
  }
  CheckpointFile file;
  file.name_ = name;
  // O_NONBLOCK: if the file is a FIFO, open must not wait for a writer. O_NOFOLLOW: open fails if
  // the file has been replaced by a symbolic link since ResolveLink checked it.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_symlinks ? 0 : O_NOFOLLOW);
  file.descriptor_ = open(target.c_str(), flags);
  if (file.descriptor_ < 0) {
    const int error = errno;  // StrCat may change errno
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat(name, ": no such file"));
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": cannot be opened: ", std::strerror(error)));
  }
  struct stat info;
  if (fstat(file.descriptor_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is not a regular file"));
  }
  file.bytes_ = info.st_size;
  return file;
}

absl::Status CheckpointFile::Read(int64_t offset, int64_t bytes, void* destination) const {
  char* out = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, out, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      return absl::InvalidArgumentError(
          absl::StrCat(name_, ": cannot be read: ", std::strerror(error)));
    }
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": the file is truncated at byte ",
                                                     offset, ", ", bytes, " bytes are missing"));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::Status CheckpointFile::ReadAll(absl::FunctionRef<bool(const void* data, int64_t bytes)> take,
                                     bool* go_on) const {
  std::vector<char> block(1 << 18);
  *go_on = true;
  for (int64_t at = 0; at < bytes_ && *go_on;) {
    const int64_t bytes = std::min<int64_t>(bytes_ - at, static_cast<int64_t>(block.size()));
    QT_RETURN_IF_ERROR(Read(at, bytes, block.data()));
    *go_on = take(block.data(), bytes);
    at += bytes;
  }
  return absl::OkStatus();
}

}  // namespace quintet
