// Times ops on a GPU against ceilings measured in the same run.
//
// Each case is a CUDA graph of several calls; the time of a call is the median graph launch divided
// by the number of calls. Calls rotate through copies of their inputs that together exceed the L2
// cache, except in "hot" cases, whose inputs the previous kernel of a model leaves in L2. Inputs
// are random, never zeros. Rates count the bytes that an op must read and write once, or its
// multiply-adds (two operations each).
#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/runtime/stream.h"

namespace quintet {

using Json = nlohmann::ordered_json;

// Ends the program if `status` is an error of the device.
void CheckOk(const absl::Status& status);

struct Ceilings {
  double copy_bytes = 0;    // per second, bytes read plus bytes written
  double matrix_flops = 0;  // bf16 GEMM, per second
};

// The bytes and operations of one call. Its ceiling is that of the two which takes longer.
struct Work {
  double bytes = 0, flops = 0;
};

// call(i) enqueues one call on copy i of the inputs, i < copies.
struct BenchCase {
  std::string name;
  Work work;
  int copies;
  std::function<void(int)> call;
};

class GpuBench {
 public:
  // Only cases whose name contains one of `filters` run; all if it is empty.
  GpuBench(Device* device, std::vector<std::string> filters)
      : pool_(1), stream_(&pool_, device), filters_(std::move(filters)) {}

  Stream& stream() { return stream_; }
  Device& device() { return stream_.device(); }
  bool Wanted(const std::string& name) const {
    return filters_.empty() ||
           std::any_of(filters_.begin(), filters_.end(), [&](const std::string& filter) {
             return name.find(filter) != std::string::npos;
           });
  }
  const Json& rows() const { return rows_; }
  const Ceilings& ceilings() const { return ceilings_; }
  void MeasureCeilings();

  // Random values in [-1, 1) as `dtype`, equal for equal seeds. The memory is valid until Clear.
  Tensor Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed = 1);
  Tensor Values(const std::vector<float>& values, std::initializer_list<int64_t> dims);  // f32
  Tensor Empty(DType dtype, std::initializer_list<int64_t> dims);
  template <typename T>
  absl::Span<const T> Plan(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    Buffer buffer = Take(device().AllocatePinned(bytes));
    T* data = buffer.as<T>();
    std::copy(values.begin(), values.end(), data);
    device().CopyH2D(data, bytes);
    memory_.push_back(std::move(buffer));
    return {data, values.size()};
  }
  void Clear() {
    CheckOk(device().Synchronize());
    memory_.clear();
  }

  // Returns how many copies of inputs of `bytes` bytes exceed the L2 cache.
  int CopiesPastL2(int64_t bytes) {
    return static_cast<int>(std::clamp<int64_t>(2 * device().l2_bytes() / bytes + 1, 2, 64));
  }
  void Run(const std::string& name, Work work, int copies, const std::function<void(int)>& call) {
    RunByTurns({{name, work, copies, call}});
  }
  // Launches the graphs of the cases alternately, so that they run at the same GPU clock.
  void RunByTurns(const std::vector<BenchCase>& cases);

 private:
  Buffer Take(absl::StatusOr<Buffer> buffer) {
    CheckOk(buffer.status());
    return *std::move(buffer);
  }
  std::vector<double> Seconds(const std::vector<BenchCase>& cases);  // per call
  void Record(const BenchCase& of, double seconds);

  ThreadPool pool_;
  Stream stream_;
  std::vector<std::string> filters_;
  std::vector<Buffer> memory_;
  Ceilings ceilings_;
  Json rows_ = Json::array();
};

// Returns "32x128" for 32 and 128.
std::string By(std::initializer_list<int64_t> sizes);

// Measures the ceilings, then runs `cases`. The main function of the GPU benchmarks; its flags:
int RunGpuBench(int argc, char** argv, const char* what,
                const std::function<void(GpuBench&)>& cases);

}  // namespace quintet
