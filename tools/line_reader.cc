#include "tools/line_reader.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace quintet {

LineReader::LineReader(int fd, size_t max_line_bytes) : fd_(fd), max_line_bytes_(max_line_bytes) {
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    const off_t position = std::max<off_t>(lseek(fd, 0, SEEK_CUR), 0);
    total_bytes_ = info.st_size - position;
  }
}

// Takes a complete line from buffer_, or an unterminated last line at the end of the input.
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
  constexpr size_t kChunk = 1 << 16;
  Outcome outcome;
  while (!TakeLine(line, &outcome)) {
    if (end_) return Outcome::kEnd;
    pollfd input = {fd_, POLLIN, 0};
    const int ready = poll(&input, 1, timeout_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR)) return Outcome::kWait;
    if (ready < 0) return Outcome::kError;
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
    const size_t old = buffer_.size();
    buffer_.resize(old + kChunk);
    const ssize_t got = read(fd_, buffer_.data() + old, kChunk);
    buffer_.resize(old + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) return Outcome::kWait;
    if (got < 0) return Outcome::kError;
    bytes_read_ += got;
    end_ = got == 0;
  }
  return outcome;
}

}  // namespace quintet
