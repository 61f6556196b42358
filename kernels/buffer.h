// Owned memory for weights, caches and workspaces. Allocated at load, never in a step.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace quintet {

class Buffer {
 public:
  // `bytes` of memory aligned to 64, in mappings that huge pages can back; blocks allocated one
  // after the other are neighbours, and memory goes back to the system when the last of its
  // neighbours is gone. Thread safe. RESOURCE_EXHAUSTED when the system has no such memory.
  static absl::StatusOr<Buffer> Allocate(int64_t bytes);

  Buffer() = default;
  // Memory of another kind (kernels/device.h), which goes when `owner` does.
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

// Hands out aligned pieces of one block; with a null base it only adds up, so one function both
// sizes and carves a workspace.
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
  static constexpr int64_t kAlignment = 256;  // what products on a GPU like best

  char* base_;
  int64_t used_ = 0;
};

}  // namespace quintet
