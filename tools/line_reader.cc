#include "tools/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"

namespace quintet {
namespace {

// Returns INVALID_ARGUMENT if the beginning of the input contains a NUL byte. Ordinary UTF-8 text
// contains none, but nearly all binary formats and texts in UTF-16 do.
absl::Status CheckText(absl::string_view bytes) {
  constexpr size_t kLooked = 8000;
  if (bytes.substr(0, kLooked).find('\0') == absl::string_view::npos) return absl::OkStatus();
  const bool utf16 = absl::StartsWith(bytes, "\xff\xfe") || absl::StartsWith(bytes, "\xfe\xff");
  return absl::InvalidArgumentError(
      utf16 ? "the input is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
            : "the input is binary: neither text nor gzip nor zstd");
}

}  // namespace

LineReader::LineReader(int fd, size_t max_line_bytes) : fd_(fd), max_line_bytes_(max_line_bytes) {
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    const off_t position = std::max<off_t>(lseek(fd, 0, SEEK_CUR), 0);
    total_bytes_ = info.st_size - position;
  }
}

// Moves the next line from buffer_ to *line and sets *outcome. Returns false if buffer_ has no
// complete line: one that ends with a newline or with the end of the input.
bool LineReader::TakeLine(std::string* line, Outcome* outcome) {
  size_t newline = buffer_.find('\n', scanned_);
  if (newline == std::string::npos) {
    scanned_ = buffer_.size();
    if (buffer_.size() - begin_ > max_line_bytes_) {  // too long: drop it and skip to its end
      skipping_ = true;
      buffer_.clear();
      begin_ = scanned_ = 0;
    }
    const bool rest = end_ && (buffer_.size() > begin_ || skipping_);
    if (!rest) return false;
    newline = buffer_.size();
  }
  size_t size = newline - begin_;
  if (size > 0 && buffer_[newline - 1] == '\r') --size;
  *outcome = skipping_ || size > max_line_bytes_ ? Outcome::kTooLong : Outcome::kLine;
  line->clear();
  if (*outcome == Outcome::kLine) line->assign(buffer_, begin_, size);
  skipping_ = false;
  begin_ = scanned_ = std::min(newline + 1, buffer_.size());
  return true;
}

LineReader::Outcome LineReader::Next(int timeout_ms, std::string* line) {
  Outcome outcome;
  while (!TakeLine(line, &outcome)) {
    if (end_) return Outcome::kEnd;
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
    switch (FillBuffer(timeout_ms)) {
      case Fill::kMore:
        break;
      case Fill::kWait:
        return Outcome::kWait;
      case Fill::kError:
        return Outcome::kError;
    }
  }
  return outcome;
}

// Reads more input into buffer_, decompressed if necessary. Sets end_ at the end of the input.
LineReader::Fill LineReader::FillBuffer(int timeout_ms) {
  if (decompressor_ != nullptr) {
    const size_t had = buffer_.size(), given = compressed_.size();
    if (const Fill fill = Decompress(); fill != Fill::kMore) return fill;
    if (buffer_.size() > had || compressed_.size() < given || end_) return Fill::kMore;
    return Read(timeout_ms, &compressed_);
  }
  if (const Fill fill = Read(timeout_ms, &buffer_); fill != Fill::kMore) return fill;
  if (!detected_) DetectCompression();
  if (detected_ && !checked_ && decompressor_ == nullptr) {
    checked_ = true;
    error_ = CheckText(buffer_);
    if (!error_.ok()) return Fill::kError;
  }
  end_ = fd_end_ && decompressor_ == nullptr;
  return Fill::kMore;
}

LineReader::Fill LineReader::Read(int timeout_ms, std::string* to) {
  constexpr size_t kChunk = 1 << 16;
  pollfd input = {fd_, POLLIN, 0};
  const int ready = poll(&input, 1, timeout_ms);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return Fill::kWait;
  const size_t old = to->size();
  to->resize(old + kChunk);
  const ssize_t got = ready < 0 ? -1 : read(fd_, to->data() + old, kChunk);
  to->resize(old + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && errno == EINTR) return Fill::kWait;
  if (got < 0) {
    error_ = absl::UnavailableError(std::strerror(errno));
    return Fill::kError;
  }
  bytes_read_ += got;
  fd_end_ = got == 0;
  return Fill::kMore;
}

LineReader::Fill LineReader::Decompress() {
  absl::string_view input = compressed_;
  const size_t had = buffer_.size();
  error_ = decompressor_->Decompress(&input, &buffer_);
  const bool idle = input.size() == compressed_.size() && buffer_.size() == had;
  compressed_.erase(0, compressed_.size() - input.size());
  if (error_.ok() && idle && fd_end_) {
    end_ = true;
    if (!decompressor_->complete()) error_ = absl::DataLossError("the compressed data ends early");
  }
  return error_.ok() ? Fill::kMore : Fill::kError;
}

// Decides by the first bytes in buffer_ whether the input is compressed, and if so creates
// decompressor_. Leaves detected_ false if the bytes read so far are too few to decide. No UTF-8
// text begins like compressed data.
void LineReader::DetectCompression() {
  const Compression compression = CompressionOfData(buffer_);
  if (compression != Compression::kNone) {
    decompressor_ = Decompressor::Create(compression);
    compressed_.swap(buffer_);
    scanned_ = 0;
  }
  detected_ = compression != Compression::kNone || fd_end_ || !IsCompressionPrefix(buffer_);
}

}  // namespace quintet
