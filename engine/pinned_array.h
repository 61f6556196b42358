// A small array of an op's plan in mirrored memory (kernels/stream.h): filled anew on the host for
// every step, uploaded only when it differs from what the device has. Not thread safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/buffer.h"
#include "kernels/check.h"
#include "kernels/stream.h"

namespace quintet {

template <typename T>
class PinnedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // `stream` outlives the object.
  explicit PinnedArray(const Stream* stream) : stream_(stream) {}

  absl::Status Allocate(int64_t capacity) {
    absl::StatusOr<Buffer> block =
        stream_->AllocateMirrored(capacity * static_cast<int64_t>(sizeof(T)));
    if (!block.ok()) return block.status();
    block_ = *std::move(block);
    planned_.reserve(static_cast<size_t>(capacity));
    return absl::OkStatus();
  }

  void Clear() { planned_.clear(); }
  void Add(const T& entry) {
    QT_CHECK_LT(planned_.size(), planned_.capacity());
    planned_.push_back(entry);
  }
  void Add(absl::Span<const T> entries) {
    QT_CHECK_LE(planned_.size() + entries.size(), planned_.capacity());
    planned_.insert(planned_.end(), entries.begin(), entries.end());
  }
  int64_t size() const { return static_cast<int64_t>(planned_.size()); }

  // Queues the upload, if one is needed.
  void Commit() {
    const size_t bytes = planned_.size() * sizeof(T);
    if (bytes == 0) return;
    const bool there = bytes <= brought_ && std::memcmp(block_.data(), planned_.data(), bytes) == 0;
    if (there) return;
    stream_->WaitForUpload(upload_);
    std::memcpy(block_.data(), planned_.data(), bytes);
    brought_ = bytes;
    upload_ = stream_->Upload(block_.data(), static_cast<int64_t>(bytes));
  }
  // The array as of Commit, in mirrored memory.
  absl::Span<const T> span() const { return {block_.as<T>(), planned_.size()}; }

 private:
  const Stream* stream_;
  std::vector<T> planned_;
  Buffer block_;
  size_t brought_ = 0;  // bytes of the block that the device has
  int64_t upload_ = 0;  // that brings them
};

}  // namespace quintet
