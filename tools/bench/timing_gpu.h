// Times ops on a GPU against ceilings measured in the same run.
//
// Each case is a graph of several calls, replayed; the time of a call is the median replay over its
// calls. Calls rotate through copies of their inputs that together exceed the L2 cache, unless a
// case says "hot": its inputs come from the kernel before it in a model and are still there. Inputs
// are random, never zeros. Rates count what an op must read and write once, or the multiply-adds it
// must do (two each).
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

// Ways to make a case end early are errors of the device: they end the program.
void CheckOk(const absl::Status& status);

struct Ceilings {
  double copy_bytes = 0;    // per second, bytes read and bytes written
  double matrix_flops = 0;  // bf16 products
};

// What one call must move or do; the larger share of a ceiling is its limit.
struct Work {
  double bytes = 0, flops = 0;
};

// call(i) queues one call on copy i < copies.
struct BenchCase {
  std::string name;
  Work work;
  int copies;
  std::function<void(int)> call;
};

class GpuBench {
 public:
  // Cases are wanted whose name has one of the filters, all if there are none.
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

  // Random values in [-1, 1) as `dtype`, the same for the same seed; memory lives until Clear.
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

  // How many copies of `bytes` of inputs exceed the L2 cache.
  int CopiesPastL2(int64_t bytes) {
    return static_cast<int>(std::clamp<int64_t>(2 * device().l2_bytes() / bytes + 1, 2, 64));
  }
  void Run(const std::string& name, Work work, int copies, const std::function<void(int)>& call) {
    RunByTurns({{name, work, copies, call}});
  }
  // Replays the cases in turn, so that they are compared at the same clock of the card.
  void RunByTurns(const std::vector<BenchCase>& cases);

 private:
  Buffer Take(absl::StatusOr<Buffer> buffer) {
    CheckOk(buffer.status());
    return *std::move(buffer);
  }
  std::vector<double> Seconds(const std::vector<BenchCase>& cases);  // of a call of each
  void Record(const BenchCase& of, double seconds);

  ThreadPool pool_;
  Stream stream_;
  std::vector<std::string> filters_;
  std::vector<Buffer> memory_;
  Ceilings ceilings_;
  Json rows_ = Json::array();
};

// "32x128" of 32 and 128.
std::string By(std::initializer_list<int64_t> sizes);

// Measures the ceilings, then `cases`, by the command line of such a program:
//   [--filter TEXT...] [--json FILE [--commit ID]]
int RunGpuBench(int argc, char** argv, const char* what,
                const std::function<void(GpuBench&)>& cases);

}  // namespace quintet
