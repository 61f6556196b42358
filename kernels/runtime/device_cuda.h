// The implementation of Device (Device::Open) in builds with CUDA. Only .cu files include it.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/linear/gemm_choices.h"
#include "kernels/runtime/device.h"

namespace quintet::cuda {

class CublasLtPlans;  // linear/cublas_plans.cuh

// While the compute stream (stream()) is busy, uploads go through a second, copy stream
// (copy_stream_) into a staging slot in device memory (staging_). The compute stream then only
// copies from that slot to the device side of the pinned buffer. Ordering guarantees:
// - The device side is still written only by the compute stream, in its order: earlier work reads
//   the old values and later work the new ones.
// - The copy in the compute stream waits until the staging slot is filled (event staged_).
// - Upload n reuses the staging slot of upload n - kStagingSlots only after that upload has been
//   copied out of it (its event in uploaded_).
// - WaitForH2D(n) waits for the event of upload n in uploaded_. After that, upload n no longer
//   reads the host side.
class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  ~CudaDevice() override;

  int64_t free_bytes() const override;
  void Use() override;
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override;
  absl::StatusOr<Buffer> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<Buffer> AllocateHost(int64_t bytes) override;
  int64_t CopyH2D(const void* pinned_host, int64_t bytes) override;
  void CopyD2H(void* pinned_host, int64_t bytes) override;
  void WaitForH2D(int64_t number) override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  void Write(void* device, const void* host, int64_t bytes) override;
  std::unique_ptr<CudaGraph> CaptureGraph(absl::FunctionRef<void()> work) override;
  void LaunchGraph(const CudaGraph& graph) override;
  absl::Status Synchronize() override;
  void RecordEvent(int index) override;
  absl::Status WaitForEvent(int index) override;

  // The cuBLASLt plans of this device.
  CublasLtPlans& plans() { return *plans_; }

  // State of AutotuneGemms, which measures GEMM algorithms until time `end`. The buffer `evicting`
  // has twice the size of L2; writing it evicts everything else from L2.
  struct Measuring {
    std::chrono::steady_clock::time_point end;
    Buffer evicting;
    bool goes_on() const { return std::chrono::steady_clock::now() < end; }
  };
  const Measuring* measuring() const { return measuring_.has_value() ? &*measuring_ : nullptr; }
  // Implements AutotuneGemms of linear/gemm_tuning.h.
  absl::Status AutotuneGemms(int64_t budget_us, absl::FunctionRef<void()> work);
  GemmAlgorithmChoices& gemm_choices() { return gemm_choices_; }
  const std::string& kind() const { return kind_; }
  int64_t waited_ns() const { return waited_ns_; }

 private:
  struct PinnedBuffer {
    int64_t bytes;
    char* device;  // address of the device side
  };
  // All pinned buffers by host address. The device and its buffers share ownership of this map,
  // because buffers may outlive the device.
  struct PinnedBuffers {
    std::mutex mutex;
    std::map<const char*, PinnedBuffer> by_host;
  };

  CudaDevice() : pinned_(std::make_shared<PinnedBuffers>()) {}
  absl::Status Start(int ordinal);
  const void* DevicePtrOf(const void* host) const override;
  // Whether an upload goes through the copy stream and a staging slot, or only through the compute
  // stream.
  bool UsesCopyStream(const void* host, int64_t bytes) const;
  void UploadThroughStaging(const void* host, int64_t bytes);
  cudaStream_t stream() const { return static_cast<cudaStream_t>(queue_); }

  // Number of events in uploaded_. Event n % kTrackedUploads is recorded in the compute stream
  // after upload n, so there are events for the latest kTrackedUploads uploads.
  static constexpr int64_t kTrackedUploads = 32;
  cudaEvent_t uploaded_[kTrackedUploads] = {};
  int64_t uploads_ = 0, uploads_seen_ = 0;  // enqueued; known to have finished
  // Number and size of the staging slots. Most steps have fewer uploads than kStagingSlots, and
  // most uploads are smaller than a slot.
  static constexpr int64_t kStagingSlots = 8, kStagingSlotBytes = int64_t{1} << 20;
  static_assert(kStagingSlots < kTrackedUploads);
  cudaStream_t copy_stream_ = nullptr;
  cudaEvent_t staged_ = nullptr;  // end of the latest upload in copy_stream_
  Buffer staging_;
  cudaEvent_t events_[kEvents] = {};
  std::shared_ptr<PinnedBuffers> pinned_;
  std::shared_ptr<CublasLtPlans> plans_;
  std::optional<Measuring> measuring_;
  GemmAlgorithmChoices gemm_choices_;
  std::string kind_;
  int64_t waited_ns_ = 0;  // device_waits.h
};

}  // namespace quintet::cuda
