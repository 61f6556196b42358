// Times ops on a GPU and compares them with ceilings measured in the same run: copy bandwidth and
// bf16 GEMM throughput.
//
// Each case is a CUDA graph of several calls of an op; the time of a call is the median time of a
// graph launch divided by the number of calls. Calls rotate through copies of their inputs that
// together exceed the L2 cache, except in "hot" cases, whose inputs are in L2 because in a model
// the previous kernel has just written them. Inputs are random, never zeros. Rates count the bytes
// that an op must read and write once, or its multiply-adds (two operations each).
#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/runtime/stream.h"

namespace quintet {

using Json = nlohmann::ordered_json;

// Exits with an error message if `status` is not OK.
void CheckOk(const absl::Status& status);

struct Ceilings {
  double copy_bytes = 0;    // per second, bytes read plus bytes written
  double matrix_flops = 0;  // operations per second of a large bf16 GEMM
};

// The bytes that one call must move and the operations that it performs. The shortest possible time
// of a call is the larger of two times: that of moving the bytes at the measured copy bandwidth,
// and that of performing the operations at the measured GEMM throughput (Ceilings).
struct Work {
  double bytes = 0, flops = 0;
};

// One benchmark case. There are `copies` copies of the inputs; call(i) enqueues one call of the op
// on copy i, 0 <= i < copies.
struct BenchCase {
  std::string name;
  Work work;
  int copies;
  std::function<void(int)> call;
};

class GpuBench {
 public:
  // Runs only cases whose name contains at least one of `filters` as a substring; all cases if
  // `filters` is empty.
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

  // Returns a tensor of random values in [-1, 1) in device memory; equal seeds give equal values.
  // The memory is valid until Clear.
  Tensor Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed = 1);
  Tensor Values(const std::vector<float>& values, std::initializer_list<int64_t> dims);  // f32
  Tensor Empty(DType dtype, std::initializer_list<int64_t> dims);
  template <typename T>
  std::span<const T> Plan(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    Buffer buffer = Take(device().AllocatePinned(bytes));
    T* data = buffer.as<T>();
    std::copy(values.begin(), values.end(), data);
    device().CopyH2D(data, bytes);
    memory_.push_back(std::move(buffer));
    return {data, values.size()};
  }
  // Copies `values` to device memory; the result is [bytes] i8.
  template <typename T>
  Tensor Bytes(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    const Tensor copy = Empty(DType::kI8, {bytes});
    stream().Write(values.data(), copy);
    return copy;
  }
  void Clear() {
    CheckOk(device().Synchronize());
    memory_.clear();
  }

  // Returns how many copies of inputs of `bytes` bytes together exceed the L2 cache; at least 2 and
  // at most 64.
  int CopiesPastL2(int64_t bytes) {
    return static_cast<int>(std::clamp<int64_t>(2 * device().l2_bytes() / bytes + 1, 2, 64));
  }
  void Run(const std::string& name, Work work, int copies, const std::function<void(int)>& call) {
    RunByTurns({{name, work, copies, call}});
  }
  // Measures several cases. The launches of their CUDA graphs alternate, so that all cases run at
  // the same GPU clock.
  void RunByTurns(const std::vector<BenchCase>& cases);

 private:
  Buffer Take(absl::StatusOr<Buffer> buffer) {
    CheckOk(buffer.status());
    return *std::move(buffer);
  }
  std::vector<double> Seconds(const std::vector<BenchCase>& cases);  // one call of each case
  void Record(const BenchCase& of, double seconds);

  ThreadPool pool_;
  Stream stream_;
  std::vector<std::string> filters_;
  std::vector<Buffer> memory_;
  Ceilings ceilings_;
  Json rows_ = Json::array();
};

// Joins sizes to a text: {32, 128} gives "32x128".
std::string By(std::initializer_list<int64_t> sizes);

// The main function of the GPU benchmarks: parses --filter, --json and --commit, measures the peak
// rates (Ceilings), calls `cases`. `what` is the title in --help. Returns the exit code.
int RunGpuBench(int argc, char** argv, const char* what,
                const std::function<void(GpuBench&)>& cases);

}  // namespace quintet
