#include "kernels/buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace quintet {

absl::StatusOr<Buffer> Buffer::Allocate(int64_t bytes) {
  QT_CHECK_GE(bytes, 0);
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  const int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  buffer.data_ = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  if (alignment == kHugePage) madvise(buffer.data_, static_cast<size_t>(rounded), MADV_HUGEPAGE);
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace quintet
