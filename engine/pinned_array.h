// A small array of an op's arguments. The host writes it anew for every step; it is uploaded only
// if it differs from the content of the device buffer. Has a pinned host buffer and a device buffer
// of the same size (kernels/runtime/stream.h). Threads may write different elements concurrently;
// otherwise not thread safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"

namespace quintet {

template <typename T>
class PinnedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // `stream` outlives the object.
  explicit PinnedArray(const Stream* stream) : stream_(stream) {}

  absl::Status Allocate(int64_t capacity) {
    QT_ASSIGN_OR_RETURN(block_,
                        stream_->AllocatePinned(capacity * static_cast<int64_t>(sizeof(T))));
    planned_.reserve(static_cast<size_t>(capacity));
    return absl::OkStatus();
  }

  // Sets the size. Elements that exist already keep their values, new ones are value-initialized.
  void Resize(int64_t size) {
    QT_CHECK_LE(static_cast<size_t>(size), planned_.capacity());
    planned_.resize(static_cast<size_t>(size));
  }
  T& operator[](int64_t i) { return planned_[static_cast<size_t>(i)]; }
  // Copies `values` to the elements from index `i` on.
  void Set(int64_t i, std::span<const T> values) {
    std::copy(values.begin(), values.end(), planned_.begin() + i);
  }
  int64_t size() const { return static_cast<int64_t>(planned_.size()); }

  // Enqueues the upload if the array differs from the content of the device buffer.
  void Commit() {
    const size_t bytes = planned_.size() * sizeof(T);
    if (bytes == 0) return;
    const bool unchanged =
        bytes <= uploaded_bytes_ && std::memcmp(block_.data(), planned_.data(), bytes) == 0;
    if (unchanged) return;
    stream_->WaitForH2D(upload_);
    std::memcpy(block_.data(), planned_.data(), bytes);
    uploaded_bytes_ = bytes;
    upload_ = stream_->CopyH2D(block_.data(), static_cast<int64_t>(bytes));
  }
  // Returns the array as an argument of an op (kernels/runtime/stream.h): the pinned host buffer,
  // with the values of the last Commit. On a GPU the op's kernels read the device buffer instead.
  std::span<const T> span() const { return {block_.as<T>(), planned_.size()}; }

 private:
  const Stream* stream_;
  std::vector<T> planned_;     // the array that Commit uploads
  Buffer block_;               // pinned, with a device buffer
  size_t uploaded_bytes_ = 0;  // of block_; the device buffer holds the same
  int64_t upload_ = 0;         // number of the latest upload
};

}  // namespace quintet
