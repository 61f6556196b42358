// The backend of kernels_gpu_test: the first GPU; QUINTET_CUDA_PORTABLE=1 disables the sm_90
// kernels. Without a GPU the program prints the reason and exits with 77, which ctest reports as
// skipped.
#define CATCH_CONFIG_RUNNER
#include <cstdio>
#include <cstring>
#include <deque>
#include <span>

#include "kernels/runtime/device.h"
#include "tests/catch.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

Device* gpu = nullptr;

class GpuBackend : public TestBackend {
 public:
  GpuBackend() : pool_(1), stream_(&pool_, gpu) {}

  Stream& stream() override { return stream_; }
  std::span<const DType> float_types() const override {
    static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
    return kTypes;
  }

 private:
  // Each tensor is a separate allocation, so that compute-sanitizer detects out-of-bounds accesses.
  // Only the index arrays of PutPlan share allocations.
  void* Allocate(int64_t bytes) override {
    return Keep(gpu->Allocate(std::max<int64_t>(1, bytes)));
  }
  const void* PutPlan(const void* data, int64_t bytes) override {
    constexpr int64_t kBlock = 1 << 18;  // pinning memory is slow
    const int64_t aligned = (bytes + 15) / 16 * 16;
    if (plan_ == nullptr || plan_left_ < aligned) {
      plan_left_ = std::max(kBlock, aligned);
      plan_ = static_cast<char*>(Keep(gpu->AllocatePinned(plan_left_)));
    }
    char* copy = plan_;
    plan_ += aligned;
    plan_left_ -= aligned;
    if (bytes > 0) std::memcpy(copy, data, static_cast<size_t>(bytes));
    gpu->CopyH2D(copy, bytes);
    return copy;
  }
  void CopyIn(void* backend, const void* host, int64_t bytes) override {
    gpu->CopyToDevice(backend, host, bytes);
    Wait();
  }
  void CopyOut(void* host, const void* backend, int64_t bytes) override {
    gpu->CopyToHost(host, backend, bytes);
    Wait();
  }

  void* Keep(absl::StatusOr<Buffer> buffer) {
    INFO(buffer.status());
    REQUIRE(buffer.ok());
    blocks_.push_back(*std::move(buffer));
    return blocks_.back().data();
  }
  void Wait() {
    const absl::Status status = gpu->Synchronize();
    INFO(status);
    REQUIRE(status.ok());
  }

  ThreadPool pool_;
  Stream stream_;
  std::deque<Buffer> blocks_;
  char* plan_ = nullptr;
  int64_t plan_left_ = 0;
};

}  // namespace

void ForEachBackend(absl::FunctionRef<void(TestBackend&)> body) {
  GpuBackend backend;
  body(backend);
}

}  // namespace quintet

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  auto device = quintet::Device::Open(0);
  if (!device.ok()) {
    std::printf("skipped: %s\n", std::string(device.status().message()).c_str());
    return kSkipped;
  }
  quintet::gpu = device->get();
  std::printf("%s, %s paths\n", quintet::gpu->name().c_str(),
              quintet::gpu->hopper() ? "sm_90" : "portable");
  Catch::Session session;
  const int error = session.applyCommandLine(argc, argv);
  if (error != 0) return error;
  // By default, skips the CPU-only tests (tag [cpu]) that some files also contain.
  if (session.configData().testsOrTags.empty()) session.configData().testsOrTags = {"~[cpu]"};
  return session.run();
}
