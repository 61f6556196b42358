// A Stream determines where ops run: the backend, and its thread pool or its device. Each engine
// has its own Stream. Not thread safe.
//
// Memory of ops. Tensors that ops read and write are in memory from Allocate. Small index arrays
// (spans, and input Tensors of i32 or i64) are in pinned buffers (AllocatePinned): pinned host
// memory (the host side) with a device buffer of the same size (the device side). CopyH2D and
// CopyD2H copy from one side to the other. The host code of an op reads the host side, to check
// arguments and to plan launches; its kernel reads the device side. A small result may also be on
// the host side: a kernel writes it there over the bus, and the host may read it after the kernel
// has run. On the CPU both sides are the same memory and the copies do nothing, so callers are the
// same for both backends.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "kernels/base/check.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

enum class Backend : uint8_t { kCpu, kCuda };

class Stream {
 public:
  // A null `device` makes a CPU stream. `pool` and `device` must outlive the Stream.
  explicit Stream(ThreadPool* pool, Device* device = nullptr) : pool_(pool), device_(device) {}

  Backend backend() const { return device_ == nullptr ? Backend::kCpu : Backend::kCuda; }
  ThreadPool& pool() const { return *pool_; }
  Device& device() const {
    QT_CHECK(device_ != nullptr);
    return *device_;
  }

  // Makes the calling thread the engine thread, which from now on enqueues all work on this stream.
  void Use() const {
    if (device_ != nullptr) device_->Use();
  }
  // Allocates memory for Tensors: zeroed on the CPU, uninitialised on a device.
  absl::StatusOr<Buffer> Allocate(int64_t bytes) const {
    return device_ == nullptr ? Buffer::Allocate(bytes) : device_->Allocate(bytes);
  }
  absl::StatusOr<Buffer> AllocatePinned(int64_t bytes) const {
    return device_ == nullptr ? Buffer::Allocate(bytes) : device_->AllocatePinned(bytes);
  }
  // Allocates host memory for data that is loaded and unloaded while a model runs (pinned if the
  // stream has a device, so that Write returns at once). Not zeroed. Any thread may call it.
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) const {
    return device_ == nullptr ? Buffer::AllocateSeparately(bytes) : device_->AllocateHost(bytes);
  }
  template <typename T>
  T* DevicePtr(T* host) const {
    return device_ == nullptr ? host : device_->DevicePtr(host);
  }
  // Returns the same tensor with the device-side address of its data, for kernels. The data must be
  // in a pinned buffer.
  Tensor DeviceTensor(Tensor pinned) const {
    pinned.data = DevicePtr(pinned.data);
    return pinned;
  }
  int64_t CopyH2D(const void* pinned_host, int64_t bytes) const {
    return device_ == nullptr ? 0 : device_->CopyH2D(pinned_host, bytes);
  }
  void CopyD2H(void* pinned_host, int64_t bytes) const {
    if (device_ != nullptr) device_->CopyD2H(pinned_host, bytes);
  }
  void WaitForH2D(int64_t number) const {
    if (device_ != nullptr) device_->WaitForH2D(number);
  }
  // Read copies a dense tensor to host memory and waits until the values have arrived. Write copies
  // host memory to a dense tensor. On a device it calls Device::CopyToDevice, which returns at once
  // if `host` is pinned, and otherwise when the caller may use `host` again.
  void Read(const Tensor& from, void* host) const {
    QT_CHECK(from.is_dense());
    const int64_t bytes = from.elements() * DTypeBytes(from.dtype);
    if (device_ != nullptr) {
      device_->CopyToHost(host, from.data, bytes);
      device_->Synchronize()
          .IgnoreError();  // sticky: the next Synchronize of the caller returns it
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
  // Waits until all enqueued work has finished.
  absl::Status Synchronize() const {
    return device_ == nullptr ? absl::OkStatus() : device_->Synchronize();
  }

  // See Device::RecordEvent and Device::WaitForEvent. On the CPU they do nothing.
  void RecordEvent(int index) const {
    if (device_ != nullptr) device_->RecordEvent(index);
  }
  absl::Status WaitForEvent(int index) const {
    return device_ == nullptr ? absl::OkStatus() : device_->WaitForEvent(index);
  }

  // Number of GEMMs run on this stream so far. Tests use it to check that projections are batched.
  int64_t gemms() const { return gemms_; }
  void CountGemm() { ++gemms_; }

 private:
  ThreadPool* pool_;
  Device* device_;
  int64_t gemms_ = 0;
};

}  // namespace quintet
