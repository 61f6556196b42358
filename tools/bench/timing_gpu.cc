#include "tools/bench/timing_gpu.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>

#include "CLI/CLI.hpp"
#include "kernels/linear.h"

namespace quintet {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) Check((call), #call)

// Device time of work queued on a stream.
class QueueTimer {
 public:
  explicit QueueTimer(cudaStream_t queue) : queue_(queue) {
    CHECK_CUDA(cudaEventCreate(&begin_));
    CHECK_CUDA(cudaEventCreate(&end_));
  }
  ~QueueTimer() {
    CHECK_CUDA(cudaEventDestroy(begin_));
    CHECK_CUDA(cudaEventDestroy(end_));
  }
  QueueTimer(const QueueTimer&) = delete;
  QueueTimer& operator=(const QueueTimer&) = delete;

  double Seconds(const std::function<void()>& work) const {
    float milliseconds = 0;
    CHECK_CUDA(cudaEventRecord(begin_, queue_));
    work();
    CHECK_CUDA(cudaEventRecord(end_, queue_));
    CHECK_CUDA(cudaEventSynchronize(end_));
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e-3 * static_cast<double>(milliseconds);
  }
  // Of eleven times after two that do not count.
  double MedianSeconds(const std::function<void()>& work) const {
    std::vector<double> seconds;
    for (int turn = -2; turn < 11; ++turn) {
      const double elapsed = Seconds(work);
      if (turn >= 0) seconds.push_back(elapsed);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  cudaStream_t queue_;
  cudaEvent_t begin_, end_;
};

std::string Today() {
  char text[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

}  // namespace

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

Tensor GpuBench::Empty(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::Dense(static_cast<void*>(nullptr), dtype, dims);
  memory_.push_back(Take(device().Allocate(t.elements() * DTypeBytes(dtype))));
  t.data = memory_.back().data();
  return t;
}

Tensor GpuBench::Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed) {
  // A pattern of this many values repeats: enough not to be predictable, quick to make.
  constexpr int64_t kPattern = (1 << 20) - 3;
  static const std::vector<float>& pattern = *[] {
    auto* values = new std::vector<float>(kPattern);
    std::mt19937 generator(1);
    for (float& v : *values) v = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
    return values;
  }();
  const Tensor t = Empty(dtype, dims);
  const int64_t n = t.elements(), size = DTypeBytes(dtype);
  std::vector<char> bytes(static_cast<size_t>(n * size));
  int64_t from = int64_t{seed} * 7919 % kPattern;
  for (int64_t done = 0; done < n;) {
    const int64_t piece = std::min(n - done, kPattern - from);
    ConvertFromF32(pattern.data() + from, piece, dtype, bytes.data() + done * size);
    done += piece;
    from = 0;
  }
  device().CopyToDevice(t.data, bytes.data(), n * size);
  CheckOk(device().Synchronize());
  return t;
}

double GpuBench::Seconds(int copies, const std::function<void(int)>& call) {
  auto queue = static_cast<cudaStream_t>(device().queue());
  const QueueTimer timer(queue);
  for (int i = 0; i < copies; ++i) call(i);  // libraries choose and load their kernels
  CheckOk(device().Synchronize());
  const double once = timer.Seconds([&] {
    for (int i = 0; i < copies; ++i) call(i);
  });
  constexpr double kLongEnough = 0.01;  // seconds of a replay
  const int turns = std::clamp(static_cast<int>(kLongEnough / once), 1, (20 + copies - 1) / copies);
  const int calls = copies * turns;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CHECK_CUDA(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) call(i % copies);
  CHECK_CUDA(cudaStreamEndCapture(queue, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  const double seconds = timer.MedianSeconds([&] { CHECK_CUDA(cudaGraphLaunch(replay, queue)); });
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return seconds / calls;
}

void GpuBench::Run(const std::string& name, Work work, int copies,
                   const std::function<void(int)>& call) {
  const double seconds = Seconds(copies, call);
  const double memory = work.bytes / ceilings_.copy_bytes;
  const double matrix = work.flops / ceilings_.matrix_flops;
  const double percent = 100 * std::max(memory, matrix) / seconds;
  const bool bytes_bound = memory >= matrix;
  const double rate = (bytes_bound ? work.bytes : work.flops) / seconds;
  std::printf("%-52s %9.2f us %8.1f %s %5.1f %% of %s\n", name.c_str(), seconds * 1e6,
              rate * (bytes_bound ? 1e-9 : 1e-12), bytes_bound ? "GB/s   " : "TFLOP/s", percent,
              bytes_bound ? "copy" : "bf16 product");
  std::fflush(stdout);
  rows_.push_back({{"name", name},
                   {"us", seconds * 1e6},
                   {"bytes", work.bytes},
                   {"flops", work.flops},
                   {bytes_bound ? "gb_per_s" : "tflop_per_s", rate * (bytes_bound ? 1e-9 : 1e-12)},
                   {"percent_of_ceiling", percent},
                   {"ceiling", bytes_bound ? "copy" : "matrix"}});
}

void GpuBench::MeasureCeilings() {
  auto queue = static_cast<cudaStream_t>(device().queue());
  constexpr int64_t kBytes = int64_t{2} << 30;
  const Tensor from = Random(DType::kF32, {kBytes / 4}), to = Empty(DType::kF32, {kBytes / 4});
  // Queued one by one: recorded copies go to engines that are slower than the kernel which copies.
  ceilings_.copy_bytes = 2.0 * kBytes / QueueTimer(queue).MedianSeconds([&] {
    CHECK_CUDA(cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDeviceToDevice, queue));
  });
  Clear();
  constexpr int64_t kSide = 8192;
  LinearWeight w = *LinearWeight::Allocate(kSide, kSide, WeightType::kBF16, false, &device());
  std::vector<float> values(kSide * kSide);
  std::mt19937 generator(2);
  for (float& v : values) v = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
  w.Pack(0, Tensor::F32(values.data(), {kSide, kSide}));
  LinearArgs args;
  args.x = Random(DType::kBF16, {kSide, kSide});
  args.w = &w;
  args.y = Empty(DType::kBF16, {kSide, kSide});
  args.scratch = Empty(DType::kI8, {std::max<int64_t>(1, LinearScratchBytes(w, kSide, stream()))});
  ceilings_.matrix_flops =
      2.0 * kSide * kSide * kSide / Seconds(1, [&](int) { Linear(args, stream()); });
  Clear();
  std::printf("%s: copy %.0f GB/s, bf16 product %.0f TFLOP/s\n", device().name().c_str(),
              ceilings_.copy_bytes * 1e-9, ceilings_.matrix_flops * 1e-12);
}

std::string By(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

int RunGpuBench(int argc, char** argv, const char* what,
                const std::function<void(GpuBench&)>& cases) {
  CLI::App app(what);
  std::string filter, json, commit;
  app.add_option("--filter", filter, "Only cases whose name has this text");
  app.add_option("--json", json, "Also write the results to this file");
  app.add_option("--commit", commit, "Recorded in the file");
  CLI11_PARSE(app, argc, argv);
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(0);
  CheckOk(device.status());
  GpuBench bench(device->get(), filter);
  bench.MeasureCeilings();
  cases(bench);
  if (json.empty()) return 0;
  const Json document = {{"device", (*device)->name()},
                         {"date", Today()},
                         {"commit", commit},
                         {"paths", (*device)->hopper() ? "sm_90" : "portable"},
                         {"copy_gb_per_s", bench.ceilings().copy_bytes * 1e-9},
                         {"matrix_tflop_per_s", bench.ceilings().matrix_flops * 1e-12},
                         {"results", bench.rows()}};
  std::ofstream file(json);
  file << document.dump(1) << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace quintet
