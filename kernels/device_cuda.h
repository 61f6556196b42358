// The Device behind Device::Open in builds with CUDA. Only .cu files include it.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/device.h"
#include "kernels/product_choices.h"

namespace quintet::cuda {

class ProductPlans;  // product_plans.cuh

// Uploads while the queue is busy, as a step's are that is queued ahead, cross the bus beside the
// work that is under way, in a queue of their own, each into a room on the device; what is left
// for their turn in the first queue is a copy from there to the twin. Nothing is seen of it:
// - a twin is still written by the first queue alone, in its order, so earlier work reads what it
//   had and later work what it gets;
// - that copy waits for the room to be filled (brought_);
// - a room is filled anew when the copy of the upload that had it before has run: kRooms uploads
//   ago, whose end in the first queue is uploaded_;
// - WaitForUpload waits for that same end, when the host's side has long been read.
class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  ~CudaDevice() override;

  int64_t free_bytes() const override;
  void Use() override;
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override;
  absl::StatusOr<Buffer> AllocateMirrored(int64_t bytes) override;
  int64_t Upload(const void* mirrored_host, int64_t bytes) override;
  void Download(void* mirrored_host, int64_t bytes) override;
  void WaitForUpload(int64_t number) override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  void Write(void* device, const void* host, int64_t bytes) override;
  std::unique_ptr<DeviceGraph> Record(absl::FunctionRef<void()> work) override;
  void Replay(const DeviceGraph& graph) override;
  absl::Status Synchronize() override;
  void Mark(int place) override;
  absl::Status WaitForMark(int place) override;

  // How matrix products run here; made by the first product.
  std::shared_ptr<ProductPlans>& plans() { return plans_; }

  // Products are being measured: until when, and memory that takes the place of all else in the
  // second-level cache when it is written.
  struct Measuring {
    std::chrono::steady_clock::time_point end;
    Buffer evicting;
    bool goes_on() const { return std::chrono::steady_clock::now() < end; }
  };
  const Measuring* measuring() const { return measuring_.has_value() ? &*measuring_ : nullptr; }
  // As measured_products.h.
  absl::Status MeasureProducts(int64_t budget_us, absl::FunctionRef<void()> work);
  ProductChoices& product_choices() { return product_choices_; }
  const std::string& kind() const { return kind_; }
  int64_t waited_ns() const { return waited_ns_; }

 private:
  struct Mirror {
    int64_t bytes;
    char* twin;
  };
  // Host addresses of mirrored buffers; shared with the buffers, which may outlive the device.
  struct Mirrors {
    std::mutex mutex;
    std::map<const char*, Mirror> by_host;
  };

  CudaDevice() : mirrors_(std::make_shared<Mirrors>()) {}
  absl::Status Start(int ordinal);
  const void* TwinOf(const void* host) const override;
  bool GoesAhead(const void* host, int64_t bytes) const;
  void UploadAhead(const void* host, int64_t bytes);
  cudaStream_t stream() const { return static_cast<cudaStream_t>(queue_); }

  int ordinal_ = 0;
  // The ends of the latest uploads, each at its number's remainder.
  static constexpr int64_t kTrackedUploads = 32;
  cudaEvent_t uploaded_[kTrackedUploads] = {};
  int64_t uploads_ = 0, uploads_seen_ = 0;  // queued; known to have run
  // More than most steps have uploads, larger than most of these.
  static constexpr int64_t kRooms = 8, kRoomBytes = int64_t{1} << 20;
  static_assert(kRooms < kTrackedUploads);
  cudaStream_t ahead_ = nullptr;
  cudaEvent_t brought_ = nullptr;  // the latest upload in ahead_
  Buffer rooms_;
  cudaEvent_t marks_[2] = {};
  std::shared_ptr<Mirrors> mirrors_;
  std::shared_ptr<ProductPlans> plans_;
  std::optional<Measuring> measuring_;
  ProductChoices product_choices_;
  std::string kind_;
  int64_t waited_ns_ = 0;  // device_waits.h
};

}  // namespace quintet::cuda
