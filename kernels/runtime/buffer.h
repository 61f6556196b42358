// Owning memory buffer for weights, caches and workspaces. Buffers are allocated while a model
// loads, never during a step of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"

namespace quintet {

class Buffer {
 public:
  // Allocates `bytes` bytes, aligned to 64 bytes, in memory that huge pages can back. Blocks of up
  // to 32 MiB share memory mappings (slabs); a slab is unmapped once all its blocks have been
  // freed. Thread safe. Returns RESOURCE_EXHAUSTED if the system has not enough memory.
  static absl::StatusOr<Buffer> Allocate(int64_t bytes);

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

// Splits one block of memory into aligned pieces. With a null base it only adds up the sizes of the
// pieces, so that the same code can compute the size of a workspace and lay it out.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  void* Take(int64_t bytes) {
    void* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  Tensor TakeTensor(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = Tensor::Dense(static_cast<void*>(nullptr), dtype, dims);
    t.data = Take(t.elements() * DTypeBytes(dtype));
    return t;
  }
  int64_t used_bytes() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 256;  // best for GEMMs on a GPU

  char* base_;
  int64_t used_ = 0;
};

}  // namespace quintet
