// Owning memory buffer for weights, caches, workspaces and adapters. Buffers are allocated while a
// model or an adapter is loaded, never during a step of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace quintet {

class Buffer {
 public:
  // Allocates `bytes` bytes, aligned to 64 bytes, in memory that huge pages can back. Blocks of up
  // to 32 MiB share memory mappings (slabs); a slab is unmapped once all its blocks have been
  // freed. Thread safe. Returns RESOURCE_EXHAUSTED if the system has not enough memory.
  static absl::StatusOr<Buffer> Allocate(int64_t bytes);
  // Like Allocate, but the buffer shares no slab with other buffers, so that its memory is released
  // as soon as the buffer is freed. Meant for data that is loaded and unloaded while a model runs.
  // Huge pages can back buffers of at least 4 MiB. Not zeroed.
  static absl::StatusOr<Buffer> AllocateSeparately(int64_t bytes);

  Buffer() = default;
  // Wraps memory that was allocated elsewhere (device memory, for example). The memory is freed
  // when the last copy of `owner` is destroyed; if `owner` is null, the caller must keep the memory
  // valid.
  Buffer(void* data, int64_t bytes, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<void> owner_;
};

}  // namespace quintet
