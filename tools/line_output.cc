#include "tools/line_output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tools/interrupt.h"

namespace quintet {
namespace {

// Compressed output is a sequence of frames (gzip members or zstd frames). A frame ends when it has
// kFrameBytes of uncompressed data or has been open for kFrameTime, whichever comes first. If the
// process is killed, only the frame that is still open is lost.
constexpr int64_t kFrameBytes = int64_t{4} << 20;
constexpr std::chrono::seconds kFrameTime{10};
constexpr size_t kReadBytes = size_t{1} << 20;

absl::Status Failed(const std::string& name, const char* what) {
  return absl::UnavailableError(absl::StrCat(what, " ", name, ": ", std::strerror(errno)));
}

bool IsStandardInput(const struct stat& file) {
  struct stat input;
  return fstat(STDIN_FILENO, &input) == 0 && S_ISREG(input.st_mode) &&
         input.st_dev == file.st_dev && input.st_ino == file.st_ino;
}

// Number and size of the complete records at the beginning of a file.
struct Records {
  int64_t count = 0;
  int64_t bytes = 0;  // size of the header and these records
};

// Reads a file from its beginning in blocks and calls visit(bytes) for each block. Stops early if
// visit returns false.
template <typename Visit>
absl::Status ReadFile(int fd, const std::string& name, const Visit& visit) {
  std::string bytes(kReadBytes, '\0');
  for (int64_t at = 0;;) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed(name, "reading");
    if (got == 0) return absl::OkStatus();
    at += got;
    if (!visit(absl::string_view(bytes.data(), static_cast<size_t>(got)))) return absl::OkStatus();
  }
}

absl::StatusOr<Records> FindLines(int fd, const std::string& name) {
  Records records;
  int64_t at = 0;
  const absl::Status status = ReadFile(fd, name, [&](absl::string_view bytes) {
    records.count += std::count(bytes.begin(), bytes.end(), '\n');
    if (const size_t last = bytes.rfind('\n'); last != bytes.npos) {
      records.bytes = at + static_cast<int64_t>(last) + 1;
    }
    at += static_cast<int64_t>(bytes.size());
    return true;
  });
  QT_RETURN_IF_ERROR(status);
  return records;
}

// Finds the last frame of a compressed file that is complete and after which the decompressed text
// ends with a newline. Returns the number of lines and the number of compressed bytes from the
// start of the file to the end of that frame. Both are 0 if there is no such frame.
absl::StatusOr<Records> FindLinesInFrames(int fd, const std::string& name,
                                          Compression compression) {
  Records records;
  const std::unique_ptr<Decompressor> decompressor = Decompressor::Create(compression);
  std::string text;
  int64_t at = 0, lines = 0;
  bool at_newline = true;
  const absl::Status status = ReadFile(fd, name, [&](absl::string_view bytes) {
    const int64_t end = at + static_cast<int64_t>(bytes.size());
    while (true) {
      const size_t given = bytes.size();
      text.clear();
      if (!decompressor->Decompress(&bytes, &text).ok()) return false;  // damaged: stop here
      lines += std::count(text.begin(), text.end(), '\n');
      if (!text.empty()) at_newline = text.back() == '\n';
      at = end - static_cast<int64_t>(bytes.size());
      if (decompressor->complete() && at_newline) records = {lines, at};
      if (text.empty() && bytes.size() == given) return true;
    }
  });
  QT_RETURN_IF_ERROR(status);
  return records;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineOutput>> LineOutput::Open(const std::string& path, bool resume,
                                                             const RecordFormat& format) {
  if (resume && path.empty()) {
    return absl::InvalidArgumentError("--resume: needs --output-file");
  }
  std::unique_ptr<LineOutput> output(new LineOutput());
  output->format_ = format;
  if (format.header) output->header_bytes_ = static_cast<int64_t>(format.header(0).size());
  output->name_ = path.empty() ? "standard output" : path;
  output->fd_ = STDOUT_FILENO;
  if (!path.empty()) {
    // Check the name first: open creates the file, and Begin truncates an existing one.
    const Compression compression = CompressionOfName(path);
    if (compression != Compression::kNone && format.record_bytes > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--output-file: ", path, " would be compressed, which binary output cannot be"));
    }
    if (compression != Compression::kNone) output->compressor_ = Compressor::Create(compression);
    output->fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (output->fd_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output-file: opening ", path, ": ", std::strerror(errno)));
    }
    output->owned_ = true;
  }
  QT_RETURN_IF_ERROR(output->Begin(resume));
  return output;
}

LineOutput::~LineOutput() {
  if (owned_) close(fd_);
}

absl::Status LineOutput::Begin(bool resume) {
  struct stat file;
  regular_ = fstat(fd_, &file) == 0 && S_ISREG(file.st_mode);
  terminal_ = isatty(fd_) == 1;
  const auto wrong = [this](absl::string_view flag, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", name_, " ", what));
  };
  if (owned_ && regular_) {
    if (IsStandardInput(file)) return wrong("--output-file", "is also the standard input");
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      return wrong("--output-file", "is in use by another process");
    }
  }
  if (resume) {
    if (!regular_) return wrong("--resume", "is not a regular file");
    QT_RETURN_IF_ERROR(KeepRecords());
  } else if (owned_ && regular_ && ftruncate(fd_, 0) != 0) {
    return Failed(name_, "truncating");
  }
  if (header_bytes_ == 0 || kept_records_ > 0) return absl::OkStatus();
  // With O_APPEND every write goes to the end of the file, so Finish cannot overwrite the header.
  if (const int flags = fcntl(fd_, F_GETFL); flags >= 0 && (flags & O_APPEND) != 0) {
    return wrong("--output",
                 "appends (>>), but the header, at the beginning, is written last; "
                 "redirect with > or set --output-file");
  }
  if (!regular_ || lseek(fd_, 0, SEEK_END) != 0) {
    return wrong("--output",
                 "must be an empty regular file, whose header is written last; "
                 "redirect with > or set --output-file");
  }
  QT_RETURN_IF_ERROR(WriteHeader(0));
  return lseek(fd_, header_bytes_, SEEK_SET) < 0 ? Failed(name_, "seeking in") : absl::OkStatus();
}

// Counts the complete records at the beginning of the file, cuts off everything after them, and
// moves the write position to the end.
absl::Status LineOutput::KeepRecords() {
  Records records;
  if (format_.record_bytes > 0) {
    const int64_t bytes = lseek(fd_, 0, SEEK_END) - header_bytes_;
    records.count = std::max<int64_t>(0, bytes / format_.record_bytes);
    if (records.count > 0) records.bytes = header_bytes_ + records.count * format_.record_bytes;
  } else {
    QT_ASSIGN_OR_RETURN(records, compressor_ == nullptr
                                     ? FindLines(fd_, name_)
                                     : FindLinesInFrames(fd_, name_, CompressionOfName(name_)));
  }
  if (ftruncate(fd_, records.bytes) != 0) return Failed(name_, "truncating");
  if (lseek(fd_, records.bytes, SEEK_SET) < 0) return Failed(name_, "seeking in");
  kept_records_ = records.count;
  return absl::OkStatus();
}

absl::Status LineOutput::WriteHeader(int64_t records) const {
  const std::string header = format_.header(records);
  return pwrite(fd_, header.data(), header.size(), 0) == static_cast<ssize_t>(header.size())
             ? absl::OkStatus()
             : Failed(name_, "writing");
}

absl::Status LineOutput::Write(absl::string_view records) {
  if (compressor_ == nullptr) return WriteBytes(records);
  if (records.empty()) return absl::OkStatus();
  const Clock::time_point now = Clock::now();
  if (frame_bytes_ == 0) frame_begin_ = now;
  buffer_.clear();
  compressor_->Compress(records, &buffer_);
  frame_bytes_ += static_cast<int64_t>(records.size());
  if (frame_bytes_ >= kFrameBytes || now - frame_begin_ >= kFrameTime) {
    compressor_->EndFrame(&buffer_);
    frame_bytes_ = 0;
  }
  return WriteBytes(buffer_);
}

absl::Status LineOutput::Finish() {
  if (header_bytes_ > 0) {
    const int64_t bytes = lseek(fd_, 0, SEEK_END) - header_bytes_;
    return WriteHeader(bytes / format_.record_bytes);
  }
  if (compressor_ == nullptr) return absl::OkStatus();
  buffer_.clear();
  compressor_->EndFrame(&buffer_);
  frame_bytes_ = 0;
  return WriteBytes(buffer_);
}

absl::Status LineOutput::WriteBytes(absl::string_view bytes) {
  constexpr int kPollMs = 100;
  while (!bytes.empty()) {
    size_t size = bytes.size();
    if (!regular_) {  // A pipe that poll reports as writable takes PIPE_BUF bytes at once.
      pollfd out = {fd_, POLLOUT, 0};
      if (poll(&out, 1, kPollMs) == 0) {
        if (Interrupted()) return absl::CancelledError("interrupted");
        continue;
      }
      size = std::min<size_t>(size, PIPE_BUF);
    }
    const ssize_t written = write(fd_, bytes.data(), size);
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      return Failed(name_, "writing");
    }
  }
  return absl::OkStatus();
}

}  // namespace quintet
