#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <thread>

#include "kernels/base/memory_size.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda_ops.h"
#include "kernels/linear/cublas_lt.cuh"
#include "kernels/linear/cublas_plans.cuh"
#include "kernels/linear/gemm_tuning_cuda.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/runtime/device_cuda.h"
#include "kernels/runtime/device_waits.h"

namespace quintet::cuda {
namespace {

absl::Status NoMemory(int64_t bytes, const char* where, cudaError_t error) {
  cudaGetLastError();  // clear the error: a failed allocation is not sticky
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", MemorySize(bytes), " ",
                                                   where, ": ", cudaGetErrorString(error)));
}

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// Measures the time from construction to destruction of this object and adds it to a counter of
// nanoseconds.
class WaitingTime {
 public:
  explicit WaitingTime(int64_t* total_ns) : total_ns_(total_ns), begin_(Clock::now()) {}
  ~WaitingTime() {
    *total_ns_ +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count();
  }
  WaitingTime(const WaitingTime&) = delete;
  WaitingTime& operator=(const WaitingTime&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t* const total_ns_;
  const Clock::time_point begin_;
};

// to[i] = from[i]. Either side may be pinned host memory, which the kernel accesses over the bus.
// Shapes: [words]. Mapping: one word per thread. Bound: the latency of the bus, 1 to 2 us.
// cudaMemcpyAsync would be slower for small copies, because the stream would switch from kernels to
// a copy engine and back.
template <typename Word>
__global__ void CopyKernel(const Word* from, Word* to, int64_t words) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < words) to[i] = from[i];
  __threadfence();  // the next kernel may read these tables before it waits for this one
}

template <typename Word>
bool Divides(const void* from, const void* to, int64_t bytes) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                         static_cast<uintptr_t>(bytes);
  return bits % sizeof(Word) == 0;
}

template <typename Word>
cudaError_t CopyByKernel(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
  CopyKernel<Word>
      <<<static_cast<unsigned>((words + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
          static_cast<const Word*>(from), static_cast<Word*>(to), words);
  return cudaGetLastError();
}

// Enqueues a copy between the host side and the device side of a pinned buffer. A kernel copies up
// to 256 KiB if both addresses and `bytes` are multiples of 4; otherwise a copy engine does it.
cudaError_t CopyPinned(const void* from, void* to, int64_t bytes, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  constexpr int64_t kMostBytesByKernel = int64_t{256} << 10;
  if (bytes <= kMostBytesByKernel) {
    if (Divides<uint4>(from, to, bytes)) return CopyByKernel<uint4>(from, to, bytes, stream);
    if (Divides<uint32_t>(from, to, bytes)) return CopyByKernel<uint32_t>(from, to, bytes, stream);
  }
  return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream);
}

// Explains the errors of cudaGetDeviceCount on a machine without a usable GPU. If there is no
// driver, the error is cudaErrorInsufficientDriver, and the driver version is 0.
absl::Status CheckDriver(cudaError_t error) {
  if (error != cudaErrorNoDevice && error != cudaErrorInsufficientDriver) return absl::OkStatus();
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (error == cudaErrorNoDevice || driver == 0) {
    return absl::UnavailableError("no NVIDIA GPU was found");
  }
  const auto version = [](int number) {
    return absl::StrCat(number / 1000, ".", number % 1000 / 10);
  };
  return absl::UnavailableError(absl::StrCat("the NVIDIA driver supports CUDA up to ",
                                             version(driver), ", this build needs ",
                                             version(CUDART_VERSION), ": update the driver"));
}

struct Graph final : CudaGraph {
  explicit Graph(cudaGraphExec_t e) : executable(e) {}
  ~Graph() override { cudaGraphExecDestroy(executable); }
  cudaGraphExec_t executable;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal) {
  return CudaDevice::Open(ordinal);
}

int DeviceCount() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Open(int ordinal) {
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  QT_RETURN_IF_ERROR(device->Start(ordinal));
  return std::unique_ptr<Device>(std::move(device));
}

absl::Status CudaDevice::Start(int ordinal) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  QT_RETURN_IF_ERROR(CheckDriver(error));
  if (error == cudaSuccess && (ordinal < 0 || ordinal >= count)) {
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", ordinal, ": not found (this machine has ", count, ")"));
  }
  // Loading cuBLASLt takes about as long as creating the CUDA context: do both at the same time,
  // but not before the driver has been loaded, because libraries are loaded one at a time.
  const std::jthread load([] { CublasLt::Get(); });
  cudaDeviceProp properties{};
  if (error == cudaSuccess) error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, ordinal);
  cudaStream_t stream = nullptr;
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  queue_ = stream;
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking);
  const auto make = [&error](std::span<cudaEvent_t> events) {
    for (cudaEvent_t& event : events) {
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
  };
  make(std::span(uploaded_));
  make(std::span(events_));
  make(std::span(&staged_, 1));
  if (error != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", ordinal, ": ", cudaGetErrorString(error)));
  }
  if (properties.major < 8) {
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", ordinal, " (", properties.name,
                     "): compute capability 8.0 or newer is needed, it has ", properties.major, ".",
                     properties.minor));
  }
  if (CublasLt::Get() == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cuBLASLt of CUDA ", CUDART_VERSION / 1000, " cannot be loaded"));
  }
  ordinal_ = ordinal;
  name_ = properties.name;
  int driver = 0;
  QT_CUDA(*this, cudaDriverGetVersion(&driver));
  kind_ =
      absl::StrCat(name_, ", ", properties.multiProcessorCount, " multiprocessors, CUDA driver ",
                   driver, ", cuBLASLt ", CublasLt::Get()->GetVersion());
  hopper_ = properties.major == 9 && !IsSet("QUINTET_CUDA_PORTABLE");
  long_attention_ = IsSet("QUINTET_CUDA_LONG_ATTENTION");
  num_sms_ = properties.multiProcessorCount;
  l2_bytes_ = properties.l2CacheSize;
  plans_ = std::make_shared<CublasLtPlans>(ordinal);
  QT_ASSIGN_OR_RETURN(staging_, Allocate(kStagingSlots * kStagingSlotBytes));
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  for (cudaStream_t queue : {stream(), copy_stream_}) {
    if (queue != nullptr) cudaStreamSynchronize(queue);
  }
  const auto destroy = [](std::span<const cudaEvent_t> events) {
    for (cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  };
  destroy(uploaded_);
  destroy(events_);
  destroy(std::span(&staged_, 1));
  for (cudaStream_t queue : {stream(), copy_stream_}) {
    if (queue != nullptr) cudaStreamDestroy(queue);
  }
}

int64_t CudaDevice::free_bytes() const {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

void CudaDevice::Use() { QT_CUDA(*this, cudaSetDevice(ordinal_)); }

absl::StatusOr<Buffer> CudaDevice::Allocate(int64_t bytes) {
  QT_CHECK_GE(bytes, 0);
  if (bytes == 0) return Buffer();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error != cudaSuccess) return NoMemory(bytes, "on the device", error);
  ++allocations_;
  return Buffer(data, bytes, std::shared_ptr<void>(data, [](void* p) { cudaFree(p); }));
}

absl::StatusOr<Buffer> CudaDevice::AllocatePinned(int64_t bytes) {
  absl::StatusOr<Buffer> device_buffer = Allocate(bytes);
  if (!device_buffer.ok() || bytes == 0) return device_buffer;
  void* host = nullptr;
  cudaError_t error = cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (error != cudaSuccess) return NoMemory(bytes, "of pinned memory", error);
  std::memset(host, 0, static_cast<size_t>(bytes));
  error = cudaMemsetAsync(device_buffer->data(), 0, static_cast<size_t>(bytes), stream());
  if (error != cudaSuccess) Fail("clearing a pinned buffer: %s", cudaGetErrorString(error));
  {
    std::lock_guard<std::mutex> lock(pinned_->mutex);
    pinned_->by_host[static_cast<char*>(host)] = {bytes, device_buffer->as<char>()};
  }
  auto device_side = std::make_shared<Buffer>(*std::move(device_buffer));
  const auto release = [buffers = pinned_, device_side](void* p) {
    {
      std::lock_guard<std::mutex> lock(buffers->mutex);
      buffers->by_host.erase(static_cast<char*>(p));
    }
    cudaFreeHost(p);
  };
  return Buffer(host, bytes, std::shared_ptr<void>(host, release));
}

absl::StatusOr<Buffer> CudaDevice::AllocateHost(int64_t bytes) {
  if (bytes == 0) return Buffer();
  void* host = nullptr;
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) {
    error = cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocDefault);
  }
  if (error != cudaSuccess) return NoMemory(bytes, "of pinned memory", error);
  return Buffer(host, bytes, std::shared_ptr<void>(host, [](void* p) { cudaFreeHost(p); }));
}

const void* CudaDevice::DevicePtrOf(const void* host) const {
  const char* at = static_cast<const char*>(host);
  std::lock_guard<std::mutex> lock(pinned_->mutex);
  auto found = pinned_->by_host.upper_bound(at);
  QT_CHECK(found != pinned_->by_host.begin());
  --found;
  QT_CHECK_LE(at - found->first, found->second.bytes);
  return found->second.device + (at - found->first);
}

// Returns true if an upload should go through the copy stream into a staging slot in device memory:
// if it is aligned and fits into a slot, and the compute stream is busy. If the compute stream is
// idle, the second copy, from the slot to the buffer's device side (both are device memory), would
// only cost time.
bool CudaDevice::UsesCopyStream(const void* host, int64_t bytes) const {
  if (bytes > kStagingSlotBytes || !Divides<uint4>(host, DevicePtrOf(host), bytes)) return false;
  const bool busy = cudaStreamQuery(stream()) == cudaErrorNotReady;
  if (busy) cudaGetLastError();  // clear it: cudaErrorNotReady is not a failure
  return busy;
}

void CudaDevice::UploadThroughStaging(const void* host, int64_t bytes) {
  char* const slot = staging_.as<char>() + uploads_ % kStagingSlots * kStagingSlotBytes;
  // Staging slots are used in rotation, so upload `before` was the last that may have used this
  // slot (0: there was none). The copy into the slot waits until that upload has finished.
  const int64_t before = std::max(uploads_ - kStagingSlots, int64_t{0});
  QT_CUDA(*this, cudaStreamWaitEvent(copy_stream_, uploaded_[before % kTrackedUploads]));
  QT_CUDA(*this, cudaMemcpyAsync(slot, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                 copy_stream_));
  QT_CUDA(*this, cudaEventRecord(staged_, copy_stream_));
  QT_CUDA(*this, cudaStreamWaitEvent(stream(), staged_));
  QT_CUDA(*this, CopyByKernel<uint4>(slot, const_cast<void*>(DevicePtrOf(host)), bytes, stream()));
}

int64_t CudaDevice::CopyH2D(const void* pinned_host, int64_t bytes) {
  if (bytes == 0) return 0;
  ++uploads_;
  if (UsesCopyStream(pinned_host, bytes)) {
    UploadThroughStaging(pinned_host, bytes);
  } else {
    QT_CUDA(*this, CopyPinned(pinned_host, DevicePtr(const_cast<void*>(pinned_host)), bytes,
                              cudaMemcpyHostToDevice, stream()));
  }
  QT_CUDA(*this, cudaEventRecord(uploaded_[uploads_ % kTrackedUploads], stream()));
  return uploads_;
}

void CudaDevice::CopyD2H(void* pinned_host, int64_t bytes) {
  if (bytes == 0) return;
  QT_CUDA(*this,
          CopyPinned(DevicePtr(pinned_host), pinned_host, bytes, cudaMemcpyDeviceToHost, stream()));
}

void CudaDevice::WaitForH2D(int64_t number) {
  if (number <= uploads_seen_) return;
  const WaitingTime waiting(&waited_ns_);
  const int64_t tracked = std::max(number, uploads_ - kTrackedUploads + 1);
  QT_CUDA(*this, cudaEventSynchronize(uploaded_[tracked % kTrackedUploads]));
  uploads_seen_ = tracked;
}

void CudaDevice::CopyToDevice(void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  QT_CUDA(*this, cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                 stream()));
}

void CudaDevice::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  QT_CUDA(*this, cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                 stream()));
}

void CudaDevice::Write(void* device, const void* host, int64_t bytes) {
  static std::mutex& failing = *new std::mutex;
  cudaError_t error = cudaSetDevice(ordinal_);
  // Copy on a per-thread stream and wait for it. A plain cudaMemcpy would not do: from pageable
  // memory it may return before the bytes have arrived, and stream() does not wait for other
  // streams.
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                            cudaStreamPerThread);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
  if (error == cudaSuccess) return;
  std::lock_guard<std::mutex> lock(failing);
  Fail("writing %ld bytes: %s", bytes, cudaGetErrorString(error));
}

std::unique_ptr<CudaGraph> CudaDevice::CaptureGraph(absl::FunctionRef<void()> work) {
  if (cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (const std::bad_alloc&) {  // the stream must not stay in capture
    cudaStreamEndCapture(stream(), &recorded);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    throw;
  }
  cudaGraphExec_t executable = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream(), &recorded);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, recorded, 0);
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return std::make_unique<Graph>(executable);
}

absl::Status CudaDevice::AutotuneGemms(int64_t budget_us, absl::FunctionRef<void()> work) {
  QT_ASSIGN_OR_RETURN(Buffer evicting, Allocate(2 * l2_bytes_));
  measuring_ = {std::chrono::steady_clock::now() + std::chrono::microseconds(budget_us),
                std::move(evicting)};
  work();
  const absl::Status status = Synchronize();
  measuring_.reset();
  return status;
}

void CudaDevice::LaunchGraph(const CudaGraph& graph) {
  QT_CUDA(*this, cudaGraphLaunch(static_cast<const Graph&>(graph).executable, stream()));
}

absl::Status CudaDevice::Synchronize() {
  const WaitingTime waiting(&waited_ns_);
  QT_CUDA(*this, cudaStreamSynchronize(stream()));
  return status();
}

void CudaDevice::RecordEvent(int index) {
  QT_CUDA(*this, cudaEventRecord(events_[index], stream()));
}

absl::Status CudaDevice::WaitForEvent(int index) {
  const WaitingTime waiting(&waited_ns_);
  QT_CUDA(*this, cudaEventSynchronize(events_[index]));
  return status();
}

absl::Status AutotuneGemms(Device& device, int64_t budget_us, absl::FunctionRef<void()> work) {
  return static_cast<CudaDevice&>(device).AutotuneGemms(budget_us, work);
}

GemmAlgorithmChoices& GemmAlgorithmChoicesOf(Device& device) {
  return static_cast<CudaDevice&>(device).gemm_choices();
}

int64_t WaitedNs(const Device& device) {
  return static_cast<const CudaDevice&>(device).waited_ns();
}

const std::string& DeviceKind(const Device& device) {
  return static_cast<const CudaDevice&>(device).kind();
}

}  // namespace quintet::cuda
