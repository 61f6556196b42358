// A Stream says where ops run: on which backend, with which threads or device queue. Each engine
// has its own; not thread safe.
//
// Memory of ops. Tensors that ops read and write are in memory of Allocate. Small index arrays
// (spans, and Tensors of i32 or i64 that are inputs) are in mirrored memory: a block on the host
// and its twin on the device, with Upload and Download between them. An op reads the host's side to
// check and plan, its kernel reads the twin. A small result may also be the host's side: a kernel
// writes there, and it can be read once the kernel has run. On the CPU a block is its own twin and
// the copies do nothing, so that callers are the same for both backends.
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

  // From now on the calling thread queues the work.
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
  // The same shape over the twin.
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
  // Copy a dense tensor to or from the host's memory. Read waits until the values are there.
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

  // Matrix products so far, by which a test sees that projections are batched.
  int64_t products() const { return products_; }
  void CountProduct() { ++products_; }

 private:
  ThreadPool* pool_;
  Device* device_;
  int64_t products_ = 0;
};

}  // namespace quintet
