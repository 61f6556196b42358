// The Device behind Device::Open in builds with CUDA. Only .cu files include it.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/device.h"

namespace quintet::cuda {

class ProductPlans;  // linear.cu

class CudaDevice final : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  ~CudaDevice() override;

  int64_t free_bytes() const override;
  void Use() override;
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override;
  absl::StatusOr<Buffer> AllocateMirrored(int64_t bytes) override;
  void Upload(const void* mirrored_host, int64_t bytes) override;
  void Download(void* mirrored_host, int64_t bytes) override;
  void WaitForUploads() override;
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
  cudaStream_t stream() const { return static_cast<cudaStream_t>(queue_); }

  int ordinal_ = 0;
  cudaEvent_t uploaded_ = nullptr;
  cudaEvent_t marks_[2] = {};
  std::shared_ptr<Mirrors> mirrors_;
  std::shared_ptr<ProductPlans> plans_;
};

}  // namespace quintet::cuda
