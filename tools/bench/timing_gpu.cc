#include "tools/bench/timing_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <random>

#include "CLI/CLI.hpp"
#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"

namespace quintet {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK_CUDA(call) Check((call), #call)

// Measures the GPU time of enqueued work: the time between two CUDA events on a stream.
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
  // Returns the median GPU time in seconds of each function in `works`. Runs two warm-up rounds and
  // eleven measured rounds; each round calls every function once.
  std::vector<double> MedianSeconds(const std::vector<std::function<void()>>& works) const {
    constexpr int kTurns = 11;
    std::vector<std::vector<double>> seconds(works.size());
    for (int turn = -2; turn < kTurns; ++turn) {
      for (size_t i = 0; i < works.size(); ++i) {
        const double elapsed = Seconds(works[i]);
        if (turn >= 0) seconds[i].push_back(elapsed);
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& of_work : seconds) {
      std::sort(of_work.begin(), of_work.end());
      medians.push_back(of_work[kTurns / 2]);
    }
    return medians;
  }

 private:
  cudaStream_t queue_;
  cudaEvent_t begin_, end_;
};

// A CUDA graph of several calls of one benchmark case, the same number for each copy of its inputs.
// It has enough calls to take about ten milliseconds, but at most about 20 calls. A case with more
// than 20 copies of its inputs has one call for each copy.
class Recording {
 public:
  // `of` is the benchmark case. `once` is the measured time in seconds of one round of calls, which
  // has one call for each copy of the inputs.
  Recording(cudaStream_t queue, const BenchCase& of, double once) : queue_(queue) {
    constexpr double kLongEnough = 0.01;
    const int turns =
        std::clamp(static_cast<int>(kLongEnough / once), 1, (20 + of.copies - 1) / of.copies);
    calls_ = of.copies * turns;
    CHECK_CUDA(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < calls_; ++i) of.call(i % of.copies);
    CHECK_CUDA(cudaStreamEndCapture(queue, &graph_));
    CHECK_CUDA(cudaGraphInstantiate(&replay_, graph_, 0));
  }
  ~Recording() {
    CHECK_CUDA(cudaGraphExecDestroy(replay_));
    CHECK_CUDA(cudaGraphDestroy(graph_));
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  int calls() const { return calls_; }
  void Replay() const { CHECK_CUDA(cudaGraphLaunch(replay_, queue_)); }

 private:
  cudaStream_t queue_;
  cudaGraph_t graph_;
  cudaGraphExec_t replay_;
  int calls_;
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

Tensor GpuBench::Values(const std::vector<float>& values, std::initializer_list<int64_t> dims) {
  const Tensor t = Empty(DType::kF32, dims);
  device().CopyToDevice(t.data, values.data(), t.elements() * 4);
  CheckOk(device().Synchronize());
  return t;
}

Tensor GpuBench::Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed) {
  // Every tensor is filled by repeating the same kPattern random values. kPattern is large enough
  // that the contents look random, and small enough that the values are generated fast.
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
    if (dtype == DType::kF8) {
      std::transform(pattern.begin() + from, pattern.begin() + from + piece, bytes.begin() + done,
                     [](float x) { return static_cast<char>(F32ToF8(x)); });
    } else {
      ConvertFromF32(pattern.data() + from, piece, dtype, bytes.data() + done * size);
    }
    done += piece;
    from = 0;
  }
  device().CopyToDevice(t.data, bytes.data(), n * size);
  CheckOk(device().Synchronize());
  return t;
}

std::vector<double> GpuBench::Seconds(const std::vector<BenchCase>& cases) {
  auto queue = static_cast<cudaStream_t>(device().queue());
  const QueueTimer timer(queue);
  std::deque<Recording> recordings;  // a deque, because it never moves its elements
  std::vector<std::function<void()>> replays;
  for (const BenchCase& of : cases) {
    for (int i = 0; i < of.copies; ++i) of.call(i);  // warm-up: libraries load their kernels
    CheckOk(device().Synchronize());
    const double once = timer.Seconds([&] {
      for (int i = 0; i < of.copies; ++i) of.call(i);
    });
    recordings.emplace_back(queue, of, once);
    replays.push_back([&recording = recordings.back()] { recording.Replay(); });
  }
  std::vector<double> seconds = timer.MedianSeconds(replays);
  for (size_t i = 0; i < cases.size(); ++i) seconds[i] /= recordings[i].calls();
  return seconds;
}

void GpuBench::RunByTurns(const std::vector<BenchCase>& cases) {
  const std::vector<double> seconds = Seconds(cases);
  for (size_t i = 0; i < cases.size(); ++i) Record(cases[i], seconds[i]);
}

void GpuBench::Record(const BenchCase& of, double seconds) {
  const double memory = of.work.bytes / ceilings_.copy_bytes;
  const double matrix = of.work.flops / ceilings_.matrix_flops;
  const double percent = 100 * std::max(memory, matrix) / seconds;
  const bool bytes_bound = memory >= matrix;
  const double rate = (bytes_bound ? of.work.bytes : of.work.flops) / seconds;
  std::printf("%-52s %9.2f us %8.1f %s %5.1f %% of %s\n", of.name.c_str(), seconds * 1e6,
              rate * (bytes_bound ? 1e-9 : 1e-12), bytes_bound ? "GB/s   " : "TFLOP/s", percent,
              bytes_bound ? "copy" : "bf16 product");
  std::fflush(stdout);
  rows_.push_back({{"name", of.name},
                   {"us", seconds * 1e6},
                   {"bytes", of.work.bytes},
                   {"flops", of.work.flops},
                   {bytes_bound ? "gb_per_s" : "tflop_per_s", rate * (bytes_bound ? 1e-9 : 1e-12)},
                   {"percent_of_ceiling", percent},
                   {"ceiling", bytes_bound ? "copy" : "matrix"}});
}

void GpuBench::MeasureCeilings() {
  auto queue = static_cast<cudaStream_t>(device().queue());
  constexpr int64_t kBytes = int64_t{2} << 30;
  const Tensor from = Random(DType::kF32, {kBytes / 4}), to = Empty(DType::kF32, {kBytes / 4});
  // Enqueue the copy directly, because it then runs as a kernel. In a CUDA graph it would run on a
  // copy engine, which is slower.
  const auto copy = [&] {
    CHECK_CUDA(cudaMemcpyAsync(to.data, from.data, kBytes, cudaMemcpyDeviceToDevice, queue));
  };
  ceilings_.copy_bytes = 2.0 * kBytes / QueueTimer(queue).MedianSeconds({copy})[0];
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
  const BenchCase product{"", {}, 1, [&](int) { Linear(args, stream()); }};
  ceilings_.matrix_flops = 2.0 * kSide * kSide * kSide / Seconds({product})[0];
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
  std::vector<std::string> filters;
  std::string json, commit;
  app.add_option("--filter", filters, "Run only cases whose name contains one of these texts.");
  app.add_option("--json", json, "Also write the results as JSON to this file.");
  app.add_option("--commit", commit, "Commit id that is written to the JSON file.");
  CLI11_PARSE(app, argc, argv);
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(0);
  CheckOk(device.status());
  GpuBench bench(device->get(), filters);
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
