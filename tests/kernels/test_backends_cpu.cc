// The backends of kernels_test: every instruction set that this CPU supports, with one thread, with
// three threads, or with each of the two.
#include <cstring>
#include <deque>
#include <span>
#include <utility>

#include "kernels/runtime/cpu_features.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

class CpuBackend : public TestBackend {
 public:
  explicit CpuBackend(int threads) : pool_(threads), stream_(&pool_) {}

  Stream& stream() override { return stream_; }
  std::span<const DType> float_types() const override {
    static constexpr DType kTypes[] = {DType::kF32};
    return kTypes;
  }

 private:
  // Each array is a separate allocation, so that a sanitizer detects out-of-bounds accesses.
  void* Allocate(int64_t bytes) override {
    blocks_.push_back(std::make_unique<char[]>(static_cast<size_t>(bytes)));
    return blocks_.back().get();
  }
  const void* PutPlan(const void* data, int64_t bytes) override {
    void* copy = Allocate(bytes);
    CopyIn(copy, data, bytes);
    return copy;
  }
  void CopyIn(void* backend, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memcpy(backend, host, static_cast<size_t>(bytes));
  }
  void CopyOut(void* host, const void* backend, int64_t bytes) override {
    CopyIn(host, backend, bytes);
  }

  ThreadPool pool_;
  Stream stream_;
  std::deque<std::unique_ptr<char[]>> blocks_;
};

}  // namespace

void ForEachBackend(absl::FunctionRef<void(TestBackend&)> body) {
  constexpr std::pair<CpuIsa, int> kIsaThreads[] = {{CpuIsa::kBaseline, 3}, {CpuIsa::kAvx2, 1},
                                                    {CpuIsa::kAvx2, 3},     {CpuIsa::kAvx512, 1},
                                                    {CpuIsa::kBest, 1},     {CpuIsa::kBest, 3}};
  for (const auto& [isa, threads] : kIsaThreads) {
    SetCpuIsaForTest(isa);
    CpuBackend backend(threads);
    body(backend);
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

}  // namespace quintet
