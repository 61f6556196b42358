// A Stream says where ops run: on which backend, with which threads or device queue. One engine
// owns one; not thread safe.
//
// Memory follows the backend: Tensors that ops read and write are in memory of Allocate. Small
// index arrays (spans, and Tensors of i32 or i64 that are inputs) are mirrored: ops read them on
// the host to plan, kernels read the twins. Small results may be the host side of mirrored memory:
// a kernel writes them there, and they can be read once it has run. On the CPU a block is its own
// twin and the copies do nothing, so callers have one text for both backends.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "kernels/buffer.h"
#include "kernels/check.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "kernels/thread_pool.h"

namespace quintet {

enum class Backend : uint8_t { kCpu, kCuda };

class Stream {
 public:
  // Null device: a CPU stream. `pool` and `device` outlive it.
  explicit Stream(ThreadPool* pool, Device* device = nullptr) : pool_(pool), device_(device) {}

  Backend backend() const { return device_ == nullptr ? Backend::kCpu : Backend::kCuda; }
  ThreadPool& pool() const { return *pool_; }
  Device& device() const {
    QT_CHECK(device_ != nullptr);
    return *device_;
  }

  // The calling thread is the one that queues work from now on.
  void Use() const {
    if (device_ != nullptr) device_->Use();
  }
  // Memory for Tensors, not initialised on a device.
  absl::StatusOr<Buffer> Allocate(int64_t bytes) const {
    return device_ == nullptr ? Buffer::Allocate(bytes) : device_->Allocate(bytes);
  }
  absl::StatusOr<Buffer> AllocateMirrored(int64_t bytes) const {
    return device_ == nullptr ? Buffer::Allocate(bytes) : device_->AllocateMirrored(bytes);
  }
  template <typename T>
  T* Twin(T* host) const {
    return device_ == nullptr ? host : device_->Twin(host);
  }
  // The same view of the twin.
  Tensor Twin(Tensor mirrored) const {
    mirrored.data = Twin(mirrored.data);
    return mirrored;
  }
  int64_t Upload(const void* mirrored_host, int64_t bytes) const {
    return device_ == nullptr ? 0 : device_->Upload(mirrored_host, bytes);
  }
  void Download(void* mirrored_host, int64_t bytes) const {
    if (device_ != nullptr) device_->Download(mirrored_host, bytes);
  }
  void WaitForUpload(int64_t number) const {
    if (device_ != nullptr) device_->WaitForUpload(number);
  }
  // Copies a dense tensor to or from memory of the host. Read waits until the values are there.
  void Read(const Tensor& from, void* host) const {
    QT_CHECK(from.is_dense());
    const int64_t bytes = from.elements() * DTypeBytes(from.dtype);
    if (device_ != nullptr) {
      device_->CopyToHost(host, from.data, bytes);
      device_->Synchronize().IgnoreError();  // sticky: the caller's next Synchronize has it
    } else if (bytes > 0) {
      std::memcpy(host, from.data, static_cast<size_t>(bytes));
    }
  }
  void Write(const void* host, const Tensor& to) const {
    QT_CHECK(to.is_dense());
    const int64_t bytes = to.elements() * DTypeBytes(to.dtype);
    if (device_ != nullptr) {
      device_->CopyToDevice(to.data, host, bytes);
    } else if (bytes > 0) {
      std::memcpy(to.data, host, static_cast<size_t>(bytes));
    }
  }
  // Waits until everything queued is done.
  absl::Status Synchronize() const {
    return device_ == nullptr ? absl::OkStatus() : device_->Synchronize();
  }

  // As Device::Mark and WaitForMark.
  void Mark(int place) const {
    if (device_ != nullptr) device_->Mark(place);
  }
  absl::Status WaitForMark(int place) const {
    return device_ == nullptr ? absl::OkStatus() : device_->WaitForMark(place);
  }

  // Matrix products issued so far: what a test counts to see that projections are batched.
  int64_t products() const { return products_; }
  void CountProduct() { ++products_; }

 private:
  ThreadPool* pool_;
  Device* device_;
  int64_t products_ = 0;
};

}  // namespace quintet
