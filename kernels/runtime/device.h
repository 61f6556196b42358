// One GPU: its CUDA stream, its memory and its sticky error status. No CUDA type appears in this
// header. A build without CUDA has this header but no implementation, and Open returns an error.
//
// Work is enqueued on the stream and runs asynchronously, in order. Kernels write results to device
// memory; CopyToHost or CopyD2H copies them to pinned host memory, where they are complete after
// Synchronize. A pinned buffer is pinned host memory with a device buffer of the same size (its
// device side): the host writes small arrays into the host memory, CopyH2D copies a part of them to
// the device side, and launchers pass device-side addresses (DevicePtr) to their kernels.
//
// Only the engine thread may call member functions, except Write and AllocateHost. Buffers may
// outlive their device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/cuda_stream.h"

namespace quintet {

// A captured CUDA graph, which can be launched again and again at low cost.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
};

class Device : public CudaStream {
 public:
  // Opens CUDA device `ordinal`. Returns UNAVAILABLE if this build has no CUDA, there is no such
  // device, its compute capability is below 8.0, or cuBLASLt cannot be loaded.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  // Number of CUDA devices that this process sees; 0 without CUDA or a driver.
  static int Count();
  ~Device() override = default;

  const std::string& name() const { return name_; }
  int ordinal() const { return ordinal_; }
  int64_t l2_bytes() const { return l2_bytes_; }
  virtual int64_t free_bytes() const = 0;

  // Makes the calling thread the engine thread: the only thread that may call member functions,
  // except Write and AllocateHost.
  virtual void Use() = 0;

  // Number of device allocations so far. Tests use it to check that steps allocate nothing.
  int64_t allocations() const { return allocations_; }
  // Allocates device memory, aligned to 256 bytes and uninitialised. Returns RESOURCE_EXHAUSTED if
  // there is not enough.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  // Allocates pinned host memory and a device buffer of the same size, both zeroed; data() is the
  // host address.
  virtual absl::StatusOr<Buffer> AllocatePinned(int64_t bytes) = 0;
  // Allocates pinned host memory without a device side, uninitialised. Any thread may call this and
  // release the buffer, but not while a copy from it is in progress.
  virtual absl::StatusOr<Buffer> AllocateHost(int64_t bytes) = 0;

  // CopyH2D (an upload) and CopyD2H enqueue a copy of `bytes` bytes from one side of a pinned
  // buffer to the other, beginning at the host address `pinned_host`. The host must not touch its
  // side until the copy has run. CopyH2D returns the number of the upload for WaitForH2D, counted
  // from 1, or 0 if `bytes` is 0.
  virtual int64_t CopyH2D(const void* pinned_host, int64_t bytes) = 0;
  virtual void CopyD2H(void* pinned_host, int64_t bytes) = 0;
  // Waits until upload `number` and all earlier uploads have finished. The host may then overwrite
  // the memory that they read. Does nothing if `number` is 0.
  virtual void WaitForH2D(int64_t number) = 0;
  // CopyToDevice and CopyToHost enqueue a copy between host memory of any kind and device memory.
  // If `host` is pinned, they return at once, and the caller must not touch `host` until the copy
  // has run. Otherwise they return when the caller may use `host` again.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;
  // Copies weights from host memory to device memory while a model loads; the copy is complete on
  // return. Threads other than the engine thread may call it, but only while the engine thread
  // calls no member function.
  virtual void Write(void* device, const void* host, int64_t bytes) = 0;

  // Captures what `work` enqueues (kernels only) into a CUDA graph instead of running it. Returns
  // null if that fails; the caller must then enqueue the work as usual. The graph keeps the
  // addresses and launch sizes of the capture. LaunchGraph launches it.
  virtual std::unique_ptr<CudaGraph> CaptureGraph(absl::FunctionRef<void()> work) = 0;
  virtual void LaunchGraph(const CudaGraph& graph) = 0;

  // Waits for all enqueued work. Errors are sticky: after the first failed launch or copy, every
  // call of Synchronize or WaitForEvent returns that error (INTERNAL).
  virtual absl::Status Synchronize() = 0;
  // RecordEvent records event `index`, in [0, kEvents), after the work enqueued so far.
  // WaitForEvent waits for the work before the latest record of event `index`, but not for work
  // enqueued after it.
  static constexpr int kEvents = 6;
  virtual void RecordEvent(int index) = 0;
  virtual absl::Status WaitForEvent(int index) = 0;
  absl::Status status() const { return status_; }

 protected:
  Device() = default;

  std::string name_;
  int ordinal_ = 0;
  int64_t l2_bytes_ = 0;
  int64_t allocations_ = 0;

 private:
  void RecordError(const char* error) override;

  absl::Status status_;
};

}  // namespace quintet
