// One GPU as the rest of the project sees it: its queue of work, memory on it, its sticky status.
// No CUDA type appears here; a build without CUDA has this header and nothing behind it, and Open
// says so.
//
// Work is queued and runs later, in order. Memory on the device is written by kernels and read back
// by CopyToHost or Download after Synchronize. Mirrored memory is a block of pinned host memory
// with a twin of the same size on the device: the host writes small arrays into it, Upload copies a
// part to the twin, and launchers pass twins to their kernels.
//
// One engine thread calls it. Buffers may outlive their device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/buffer.h"

namespace quintet {

// Recorded work that can be queued again and again at little cost.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Device {
 public:
  // UNAVAILABLE: this build has no CUDA, or there is no such device.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  // Kernels of sm_90 may be used. QUINTET_CUDA_PORTABLE=1 in the environment makes it false, to
  // test the portable ones on any card.
  bool hopper() const { return hopper_; }
  // Attention's kernels for long sequences take short ones as well: QUINTET_CUDA_LONG_ATTENTION=1
  // in the environment, to test them with short inputs.
  bool long_attention() const { return long_attention_; }
  int multiprocessors() const { return multiprocessors_; }
  int64_t l2_bytes() const { return l2_bytes_; }
  virtual int64_t free_bytes() const = 0;

  // The calling thread is the engine's from now on.
  virtual void Use() = 0;

  // How often memory has been allocated: what a test counts to see that steps do without.
  int64_t allocations() const { return allocations_; }
  // Device memory, aligned to 256 bytes, not initialised. RESOURCE_EXHAUSTED when there is no such
  // memory.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  // Pinned host memory with its twin, both zero; data() is the host side.
  virtual absl::StatusOr<Buffer> AllocateMirrored(int64_t bytes) = 0;
  // The device address of a place in a mirrored buffer; QT_CHECK: it is inside one.
  template <typename T>
  T* Twin(T* host) const {
    return static_cast<T*>(const_cast<void*>(TwinOf(host)));
  }

  // Queued copies of a part of a mirrored buffer, to its twin and back. The host side must stay
  // untouched until they have run. Uploads are numbered from 1 on.
  virtual int64_t Upload(const void* mirrored_host, int64_t bytes) = 0;
  virtual void Download(void* mirrored_host, int64_t bytes) = 0;
  // Waits until this Upload, and so every earlier one, has run: its host side may be written again.
  // 0: none.
  virtual void WaitForUpload(int64_t number) = 0;
  // Queued when `host` is pinned; otherwise they return when `host` may be used again.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;
  // The only calls that other threads may make, while the engine's does nothing: copies that are
  // done on return, for loading.
  virtual void Write(void* device, const void* host, int64_t bytes) = 0;

  // Records what `work` queues, kernels alone, instead of running it. Null when that fails: then
  // the work has to be queued as usual. Addresses and launch sizes are those of the recording.
  virtual std::unique_ptr<DeviceGraph> Record(absl::FunctionRef<void()> work) = 0;
  virtual void Replay(const DeviceGraph& graph) = 0;

  // Waits for all work queued. The first error since Open stays: INTERNAL.
  virtual absl::Status Synchronize() = 0;
  // Notes the end of what is queued so far, and waits for the latest such place: work queued after
  // it may go on. Two places can be noted at once, 0 and 1.
  virtual void Mark(int place) = 0;
  virtual absl::Status WaitForMark(int place) = 0;
  // Notes an error of a launch or a copy; the first one is what Synchronize returns from then on.
  void Fail(absl::string_view what);
  absl::Status status() const { return status_; }

  void* queue() const { return queue_; }  // cudaStream_t

 protected:
  Device() = default;
  virtual const void* TwinOf(const void* host) const = 0;

  std::string name_;
  bool hopper_ = false;
  bool long_attention_ = false;
  int multiprocessors_ = 0;
  int64_t l2_bytes_ = 0;
  void* queue_ = nullptr;
  int64_t allocations_ = 0;

 private:
  absl::Status status_;
};

}  // namespace quintet
