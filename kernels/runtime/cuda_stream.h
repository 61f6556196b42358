// The part of a Device (kernels/runtime/device.h) that functions need to launch kernels: its CUDA
// stream, the properties that decide how kernels are launched, and the record of errors. CUDA
// sources include this header instead of device.h, because it compiles quickly: it has no CUDA type
// and includes no Abseil. Only the engine thread may call member functions.
#pragma once

#include <cstdint>

namespace quintet {

class CudaStream {
 public:
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void* queue() const { return queue_; }  // cudaStream_t
  // Whether kernels for sm_90 (Hopper) are used. Setting QUINTET_CUDA_PORTABLE=1 in the environment
  // makes it false, so that the portable kernels can be tested on any GPU.
  bool hopper() const { return hopper_; }
  // Whether the attention kernels for long sequences are used for short ones, too. Setting
  // QUINTET_CUDA_LONG_ATTENTION=1 in the environment makes it true, so that tests can use short
  // inputs.
  bool long_attention() const { return long_attention_; }
  // Number of SMs.
  int num_sms() const { return num_sms_; }

  // Returns the device-side address that corresponds to the host address `host`, which must be
  // inside a pinned buffer (QT_CHECK).
  template <typename T>
  T* DevicePtr(T* host) const {
    return static_cast<T*>(const_cast<void*>(DevicePtrOf(host)));
  }
  // Records an error of a launch or a copy, given as for printf. The first recorded error is kept:
  // from then on, every call of Device::Synchronize and Device::WaitForEvent returns it (INTERNAL).
  [[gnu::format(printf, 2, 3)]] void Fail(const char* format, ...);

 protected:
  CudaStream() = default;
  virtual ~CudaStream() = default;

  void* queue_ = nullptr;
  bool hopper_ = false;
  bool long_attention_ = false;
  int num_sms_ = 0;

 private:
  virtual const void* DevicePtrOf(const void* host) const = 0;
  virtual void RecordError(const char* error) = 0;
};

}  // namespace quintet
