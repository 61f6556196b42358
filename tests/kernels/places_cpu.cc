// The places of kernels_test: every instruction set that this CPU supports, on one or three
// threads.
#include <cstring>
#include <deque>
#include <utility>

#include "kernels/runtime/cpu_features.h"
#include "tests/kernels/place.h"

namespace quintet {
namespace {

class CpuPlace : public Place {
 public:
  explicit CpuPlace(int threads) : pool_(threads), stream_(&pool_) {}

  Stream& stream() override { return stream_; }
  absl::Span<const DType> float_types() const override {
    static constexpr DType kTypes[] = {DType::kF32};
    return kTypes;
  }

 private:
  // One allocation each, so that a sanitizer detects out-of-bounds accesses.
  void* Allocate(int64_t bytes) override {
    blocks_.push_back(std::make_unique<char[]>(static_cast<size_t>(bytes)));
    return blocks_.back().get();
  }
  const void* PutPlan(const void* data, int64_t bytes) override {
    void* copy = Allocate(bytes);
    CopyIn(copy, data, bytes);
    return copy;
  }
  void CopyIn(void* place, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memcpy(place, host, static_cast<size_t>(bytes));
  }
  void CopyOut(void* host, const void* place, int64_t bytes) override {
    CopyIn(host, place, bytes);
  }

  ThreadPool pool_;
  Stream stream_;
  std::deque<std::unique_ptr<char[]>> blocks_;
};

}  // namespace

void ForEachPlace(absl::FunctionRef<void(Place&)> body) {
  constexpr std::pair<CpuIsa, int> kIsaThreads[] = {{CpuIsa::kBaseline, 3}, {CpuIsa::kAvx2, 1},
                                                    {CpuIsa::kAvx2, 3},     {CpuIsa::kAvx512, 1},
                                                    {CpuIsa::kBest, 1},     {CpuIsa::kBest, 3}};
  for (const auto& [isa, threads] : kIsaThreads) {
    SetCpuIsaForTest(isa);
    CpuPlace place(threads);
    body(place);
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

}  // namespace quintet
