// Benchmark of ops on the CPU by shape: time, rate, and fraction of the CPU's peak, which is
// measured in the same run.
//
//   bench_kernels [--filter TEXT] [--threads N] [--busy] [--json FILE [--commit ID]] [--onednn]
//
// Times on one thread are CPU time of that thread, so that other processes on the machine disturb
// them little; times on several threads, or with --busy, are wall time. --busy measures every case
// once more while another thread on each core keeps that core busy. The case then gets half of each
// core, so it should take twice as long; any further slowdown is the cost of threads that wait
// for each other. "cold" cases rotate through several copies of the weights, which together do not
// fit into the caches, like the layers of a decoder. --onednn (if oneDNN was found at build time)
// measures only large GEMMs: each with Quintet and then with oneDNN, which runs on one thread.
#include <pthread.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/linear/weight.h"
#include "kernels/runtime/cpu_features.h"
#include "kernels/runtime/stream.h"
#include "kernels/runtime/thread_pool.h"
#include "kernels/sampling/log_prob.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/bench/bench_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Runs `rounds` rounds of 12 independent FMAs on SIMD registers, without memory access; its time
// gives the CPU's peak FLOP/s. Performs 2 * rounds * 12 * lanes operations and returns lanes, the
// number of floats in a register. Reads out[0] before the loop and writes the result to it, so that
// the compiler cannot remove the loop.
size_t MultiplyAdds(int64_t rounds, float* out) {
  const hn::CappedTag<float, 16> d;
  const auto a = hn::Set(d, out[0]);
  // Makes the start value of an accumulator. The 12 start values differ, so that the compiler does
  // not merge the accumulators.
  const auto from = [&](float x) HWY_ATTR { return hn::Set(d, x); };
  auto s0 = from(0), s1 = from(1), s2 = from(2), s3 = from(3), s4 = from(4), s5 = from(5);
  auto s6 = from(6), s7 = from(7), s8 = from(8), s9 = from(9), sa = from(10), sb = from(11);
  for (int64_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, a, a), s1 = hn::MulAdd(s1, a, a), s2 = hn::MulAdd(s2, a, a);
    s3 = hn::MulAdd(s3, a, a), s4 = hn::MulAdd(s4, a, a), s5 = hn::MulAdd(s5, a, a);
    s6 = hn::MulAdd(s6, a, a), s7 = hn::MulAdd(s7, a, a), s8 = hn::MulAdd(s8, a, a);
    s9 = hn::MulAdd(s9, a, a), sa = hn::MulAdd(sa, a, a), sb = hn::MulAdd(sb, a, a);
  }
  s0 =
      hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  s0 = hn::Add(s0, hn::Add(hn::Add(s8, s9), hn::Add(sa, sb)));
  out[0] = hn::GetLane(s0) * 0.0f + out[0];
  return hn::Lanes(d);
}

// Sums n floats as fast as they can be read from memory; used to measure the memory bandwidth.
float ReadAll(const float* x, size_t n) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::Load(d, x + i));
    s1 = hn::Add(s1, hn::Load(d, x + i + lanes));
    s2 = hn::Add(s2, hn::Load(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, hn::Load(d, x + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#ifdef QUINTET_ONEDNN
#include <omp.h>

#include <dnnl.hpp>
#include <unordered_map>
#endif

namespace quintet {
HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(ReadAll);

namespace {

using Json = nlohmann::ordered_json;

double Now(bool cpu) {
  timespec t;
  clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = uniform(generator);
  return values;
}

// Copies the values to a Buffer, because it can use huge pages, as the workspace of a model does.
Buffer InBuffer(const std::vector<float>& values) {
  Buffer buffer = *Buffer::Allocate(static_cast<int64_t>(values.size()) * 4);
  std::copy(values.begin(), values.end(), buffer.as<float>());
  return buffer;
}

struct Peaks {
  double flops = 0;       // f32 operations per second of one thread; an FMA is two
  double read_bytes = 0;  // per second from main memory
};

// Returns the time of one call in seconds: the median of seven batches. A batch has as many calls
// as take about 20 ms. With `cpu_time` this is CPU time of the calling thread, otherwise wall time.
double Measure(bool cpu_time, const std::function<void()>& call) {
  call();
  int64_t calls = 1;
  for (;;) {
    const double begin = Now(cpu_time);
    for (int64_t i = 0; i < calls; ++i) call();
    if (Now(cpu_time) - begin > 0.02 || calls > 1 << 20) break;
    calls *= 2;
  }
  std::vector<double> batches;
  for (int b = 0; b < 7; ++b) {
    const double begin = Now(cpu_time);
    for (int64_t i = 0; i < calls; ++i) call();
    batches.push_back((Now(cpu_time) - begin) / static_cast<double>(calls));
  }
  std::sort(batches.begin(), batches.end());
  return batches[batches.size() / 2];
}

Peaks MeasurePeaks() {
  Peaks peaks;
  float value = 1e-3f;
  constexpr int64_t kRounds = 100000;
  size_t lanes = 0;
  double seconds =
      Measure(true, [&] { lanes = HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kRounds, &value); });
  peaks.flops = 2.0 * 12 * static_cast<double>(lanes) * kRounds / seconds;
  Buffer buffer = *Buffer::Allocate(int64_t{256} << 20);
  std::fill_n(buffer.as<float>(), buffer.bytes() / 4, 1.0f);
  volatile float sink = 0;
  seconds = Measure(true, [&] {
    sink =
        HWY_DYNAMIC_DISPATCH(ReadAll)(buffer.as<float>(), static_cast<size_t>(buffer.bytes()) / 4);
  });
  peaks.read_bytes = static_cast<double>(buffer.bytes()) / seconds;
  return peaks;
}

const char* TypeName(WeightType type) {
  return type == WeightType::kF32 ? "f32" : type == WeightType::kBF16 ? "bf16" : "i8";
}

// While an object of this class exists, one spinning thread per core keeps all cores busy, as a
// compilation on the same machine would.
class BusyCores {
 public:
  BusyCores() {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    for (int core = 0; core < cores; ++core) {
      threads_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(core, &set);
      pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set);
    }
  }
  ~BusyCores() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string Today() {
  char text[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

class Bench {
 public:
  Bench(int threads, bool busy, std::string filter)
      : pool_(threads), stream_(&pool_), busy_(busy), filter_(std::move(filter)) {}

  // Measures one case if its name matches the filter, then prints and stores the result. work:
  // number of operations, bytes or tasks in one call. unit: the unit in which the rate is printed,
  // 1e9 operations, bytes or tasks per second (for example GFLOP/s). limit_seconds: the shortest
  // possible time of a call (Limit); 0 if unknown.
  void Run(const std::string& name, double work, const char* unit, double limit_seconds,
           const std::function<void()>& call) {
    if (name.find(filter_) == std::string::npos) return;
    const double seconds = Measure(cpu_time(), call);
    std::printf("%-44s %10.2f us %9.2f %-7s", name.c_str(), seconds * 1e6, work / seconds * 1e-9,
                unit);
    Json row = {{"name", name}, {"us", seconds * 1e6}, {unit, work / seconds * 1e-9}};
    if (limit_seconds > 0) {
      row["percent_of_peak"] = 100 * limit_seconds / seconds;
      std::printf(" %5.1f %% of peak", 100 * limit_seconds / seconds);
    }
    if (busy_) {
      const BusyCores neighbours;
      const double busy_seconds = Measure(cpu_time(), call);
      row["busy_us"] = busy_seconds * 1e6;
      row["busy_slowdown"] = busy_seconds / seconds;
      std::printf(" %10.2f us on busy cores, %5.2f times as long", busy_seconds * 1e6,
                  busy_seconds / seconds);
    }
    std::printf("\n");
    std::fflush(stdout);
    results_.push_back(row);
  }

  bool wanted(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  bool cpu_time() const { return pool_.threads() == 1 && !busy_; }
  ThreadPool& pool() { return pool_; }
  Stream& stream() { return stream_; }
  const Peaks& peaks() const { return peaks_; }
  // Roofline: returns the shortest possible time in seconds of `flops` operations that read `bytes`
  // from memory, on all threads of the pool. Compute scales with the number of threads and with
  // flops_factor (FlopsFactor); memory bandwidth does not, because threads share it.
  double Limit(double flops, double bytes, double flops_factor) const {
    return std::max(flops / (peaks_.flops * flops_factor * pool_.threads()),
                    bytes / peaks_.read_bytes);
  }
  void SetPeaks(const Peaks& peaks) { peaks_ = peaks; }
  const Json& results() const { return results_; }

 private:
  ThreadPool pool_;
  Stream stream_;
  bool busy_;
  std::string filter_;
  Peaks peaks_;
  Json results_ = Json::array();
};

// Peak operations per second with this weight type, relative to f32. Where an FMA does one
// multiply-add per lane, a dot-product instruction does two for bf16 and four for i8.
double FlopsFactor(WeightType type) {
  if (type == WeightType::kBF16) return 2;
  return type == WeightType::kI8 && CpuHasAvx512Vnni() ? 4 : 1;
}

std::vector<LinearWeight> Weights(int64_t n, int64_t k, WeightType type, int64_t copies) {
  const std::vector<float> values = Random(n * k, 1);
  std::vector<LinearWeight> weights;
  for (int64_t i = 0; i < copies; ++i) {
    weights.push_back(*LinearWeight::Allocate(n, k, type, false));
    weights.back().Pack(0, Tensor::F32(values.data(), {n, k}));
  }
  return weights;
}

struct Shape {
  int64_t n, k;
};
constexpr Shape kT5Base[] = {{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {32128, 768}};

void BenchLinear(Bench& bench, WeightType type, Shape shape, int64_t rows, bool cold) {
  const std::string name = std::string("linear ") + TypeName(type) + " " + std::to_string(rows) +
                           "x" + std::to_string(shape.k) + "x" + std::to_string(shape.n) +
                           (cold ? " cold" : "");
  if (!bench.wanted(name)) return;
  const int64_t bytes = shape.n * shape.k *
                        (type == WeightType::kF32    ? 4
                         : type == WeightType::kBF16 ? 2
                                                     : 1);
  const std::vector<LinearWeight> weights =
      Weights(shape.n, shape.k, type, cold ? 1 + (int64_t{200} << 20) / bytes : 1);
  const Buffer x = InBuffer(Random(rows * shape.k, 2));
  const Buffer y = *Buffer::Allocate(rows * shape.n * 4);
  std::vector<char> scratch(
      static_cast<size_t>(LinearScratchBytes(weights[0], rows, bench.stream())) + 64);
  LinearArgs args;
  args.x = Tensor::F32(x.as<float>(), {rows, shape.k});
  args.y = Tensor::F32(y.as<float>(), {rows, shape.n});
  args.scratch = Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
  size_t next = 0;
  const double flops = 2.0 * static_cast<double>(rows * shape.n * shape.k);
  bench.Run(name, flops, "GFLOP/s",
            bench.Limit(flops, cold ? static_cast<double>(bytes) : 0.0, FlopsFactor(type)), [&] {
              args.w = &weights[next];
              next = (next + 1) % weights.size();
              Linear(args, bench.stream());
            });
}

void BenchLogProb(Bench& bench, WeightType type, int64_t rows, int64_t top) {
  const int64_t vocab = 32128, k = 768;
  const std::string name = std::string("log_prob ") + TypeName(type) + " " + std::to_string(rows) +
                           "x768x32128 top " + std::to_string(top);
  if (!bench.wanted(name)) return;
  const std::vector<LinearWeight> head = Weights(vocab, k, type, 1);
  const std::vector<float> x = Random(rows * k, 2);
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 5);
  std::vector<float> out(static_cast<size_t>(rows)), best(static_cast<size_t>(rows * top));
  std::vector<int32_t> tokens(best.size());
  std::vector<char> scratch(
      static_cast<size_t>(TargetLogProbScratchBytes(head[0], rows, top, bench.stream())));
  TargetLogProbArgs args;
  args.hidden = Tensor::F32(x.data(), {rows, k});
  args.head = &head[0];
  args.targets = Tensor::Dense(targets.data(), DType::kI32, {rows});
  args.log_probs = Tensor::F32(out.data(), {rows});
  if (top > 0) {
    args.top_log_probs = Tensor::F32(best.data(), {rows, top});
    args.top_tokens = Tensor::Dense(tokens.data(), DType::kI32, {rows, top});
  }
  args.scratch = Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
  const double flops = 2.0 * static_cast<double>(rows * vocab * k);
  bench.Run(name, flops, "GFLOP/s", bench.Limit(flops, 0, FlopsFactor(type)),
            [&] { TargetLogProb(args, bench.stream()); });
}

void BenchPack(Bench& bench, DType from, WeightType type, bool transposed) {
  const int64_t n = 3072, k = 768;
  const std::string name = std::string("pack ") + DTypeName(from) +
                           (transposed ? " transposed" : "") + " to " + TypeName(type);
  if (!bench.wanted(name)) return;
  const std::vector<float> values = Random(n * k, 1);
  std::vector<char> source(static_cast<size_t>(n * k * DTypeBytes(from)));
  ConvertFromF32(values.data(), n * k, from, source.data());
  Tensor w = Tensor::Dense(source.data(), from, {n, k});
  if (transposed) w.stride = {1, n, 0, 0};
  LinearWeight weight = *LinearWeight::Allocate(n, k, type, false);
  bench.Run(name, static_cast<double>(source.size()), "GB/s", 0, [&] { weight.Pack(0, w); });
}

void BenchPackQuantized(Bench& bench) {
  const int64_t n = 3072, k = 768;
  const std::vector<int8_t> values(static_cast<size_t>(n * k), 3);
  const std::vector<float> scales(static_cast<size_t>(n), 0.01f);
  LinearWeight weight = *LinearWeight::Allocate(n, k, WeightType::kI8, false);
  bench.Run("pack i8 to i8", static_cast<double>(values.size()), "GB/s", 0, [&] {
    weight.PackQuantized(0, Tensor::Dense(values.data(), DType::kI8, {n, k}),
                         Tensor::F32(scales.data(), {n}));
  });
}

void BenchPool(Bench& bench) {
  for (int64_t tasks : {1, 2, 16, 256}) {
    bench.Run("parallel_for " + std::to_string(tasks) + " empty tasks", static_cast<double>(tasks),
              "Gtask/s", 0, [&] { bench.pool().ParallelFor(tasks, [](int64_t, int) {}); });
  }
}

#ifdef QUINTET_ONEDNN

// Describes y = x * w with oneDNN 2 or 3. With `channel_scales` (not empty), column c of y is
// multiplied by channel_scales[c]; oneDNN 3 takes these factors as an argument of each execution,
// which this function adds to `args`.
dnnl::matmul::primitive_desc DescribeMatmul(const dnnl::engine& engine, const dnnl::memory::desc& x,
                                            const dnnl::memory::desc& w,
                                            const dnnl::memory::desc& y,
                                            std::vector<float>& channel_scales,
                                            std::unordered_map<int, dnnl::memory>* args) {
  constexpr int kPerColumn = 1 << 1;
  dnnl::primitive_attr attributes;
#if DNNL_VERSION_MAJOR >= 3
  if (!channel_scales.empty()) {
    attributes.set_scales_mask(DNNL_ARG_WEIGHTS, kPerColumn);
    const dnnl::memory::desc scales({static_cast<int64_t>(channel_scales.size())},
                                    dnnl::memory::data_type::f32, dnnl::memory::format_tag::a);
    args->insert({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS,
                  dnnl::memory(scales, engine, channel_scales.data())});
  }
  return {engine, x, w, y, attributes};
#else
  (void)args;
  if (!channel_scales.empty()) attributes.set_output_scales(kPerColumn, channel_scales);
  return {{x, w, y}, attributes, engine};
#endif
}

// Measures oneDNN's matmul on one thread, with weights in oneDNN's preferred layout. The i8 matmul
// is u8 x s8 -> f32 with a scale per output channel. The oneDNN API used here has no scales per row
// of x. The time therefore includes quantizing x before the matmul and scaling the rows of the
// result after it; the time of our GEMM includes both, too.
void BenchOneDnn(Bench& bench, WeightType type, Shape shape, int64_t rows) {
  const std::string name = std::string("onednn ") + TypeName(type) + " " + std::to_string(rows) +
                           "x" + std::to_string(shape.k) + "x" + std::to_string(shape.n);
  if (!bench.wanted(name)) return;
  using dnnl::memory;
  using Type = memory::data_type;
  omp_set_num_threads(1);
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static dnnl::stream stream(engine);
  const Type x_type = type == WeightType::kF32    ? Type::f32
                      : type == WeightType::kBF16 ? Type::bf16
                                                  : Type::u8;
  const Type w_type = type == WeightType::kI8 ? Type::s8 : x_type;
  const memory::desc x_desc({rows, shape.k}, x_type, memory::format_tag::ab);
  const memory::desc w_desc({shape.k, shape.n}, w_type, memory::format_tag::any);
  const memory::desc y_desc({rows, shape.n}, Type::f32, memory::format_tag::ab);
  std::vector<float> channel_scales(type == WeightType::kI8 ? static_cast<size_t>(shape.n) : 0,
                                    0.01f);
  std::unordered_map<int, memory> args;
  const dnnl::matmul::primitive_desc desc =
      DescribeMatmul(engine, x_desc, w_desc, y_desc, channel_scales, &args);
  const dnnl::matmul matmul(desc);
  const auto buffer = [](const memory::desc& d) {
    return *Buffer::Allocate(static_cast<int64_t>(d.get_size()));
  };
  const Buffer x_buffer = buffer(desc.src_desc()), w_buffer = buffer(desc.weights_desc()),
               y_buffer = buffer(desc.dst_desc());
  memory x(desc.src_desc(), engine, x_buffer.data());
  memory w(desc.weights_desc(), engine, w_buffer.data());
  memory y(desc.dst_desc(), engine, y_buffer.data());
  args.insert({{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
  const std::vector<float> values = Random(std::max(rows, shape.n) * shape.k, 3);
  memory plain_x({{rows, shape.k}, Type::f32, memory::format_tag::ab}, engine,
                 const_cast<float*>(values.data()));
  memory plain_w({{shape.k, shape.n}, Type::f32, memory::format_tag::ba}, engine,
                 const_cast<float*>(values.data()));
  dnnl::reorder(plain_x, x).execute(stream, plain_x, x);
  dnnl::reorder(plain_w, w).execute(stream, plain_w, w);
  const double flops = 2.0 * static_cast<double>(rows * shape.n * shape.k);
  std::vector<float> scales(static_cast<size_t>(rows));
  bench.Run(name, flops, "GFLOP/s", bench.Limit(flops, 0, FlopsFactor(type)), [&] {
    for (int64_t r = 0; type != WeightType::kF32 && r < rows; ++r) {
      const float* row = values.data() + r * shape.k;
      if (type == WeightType::kI8) {
        const cpu::RowScale scale = cpu::ScaleOfRow(row, shape.k);
        scales[static_cast<size_t>(r)] = scale.scale;
        cpu::QuantizeValues(row, shape.k, scale.inverse, x_buffer.as<uint8_t>() + r * shape.k);
      } else {
        cpu::Bf16RoundValues(row, shape.k, x_buffer.as<uint16_t>() + r * shape.k);
      }
    }
    matmul.execute(stream, args);
    stream.wait();
    for (int64_t r = 0; type == WeightType::kI8 && r < rows; ++r) {
      float* y_row = y_buffer.as<float>() + r * shape.n;
      for (int64_t c = 0; c < shape.n; ++c) y_row[c] *= scales[static_cast<size_t>(r)];
    }
  });
}

#endif

std::vector<WeightType> Types() {
  std::vector<WeightType> types = {WeightType::kF32, WeightType::kI8};
  if (WeightTypeSupported(WeightType::kBF16)) types.push_back(WeightType::kBF16);
  return types;
}

void BenchAll(Bench& bench) {
  BenchPool(bench);
  for (WeightType type : Types()) {
    for (const Shape& shape : kT5Base) {
      for (int64_t rows : {1, 4, 8}) BenchLinear(bench, type, shape, rows, true);
      for (int64_t rows : {1, 4, 8, 32, 128, 512, 2048}) {
        if (rows * shape.n <= int64_t{1} << 24) BenchLinear(bench, type, shape, rows, false);
      }
    }
    BenchLogProb(bench, type, 128, 0);
    BenchLogProb(bench, type, 128, 5);
    for (DType from : {DType::kF32, DType::kBF16, DType::kF16}) BenchPack(bench, from, type, false);
    BenchPack(bench, DType::kF32, type, true);
  }
  BenchPackQuantized(bench);
}

#ifdef QUINTET_ONEDNN
void BenchAgainstOneDnn(Bench& bench) {
  for (WeightType type : Types()) {
    for (const Shape& shape : kT5Base) {
      for (int64_t rows : {128, 512, 2048}) {
        if (rows * shape.n > int64_t{1} << 24) continue;
        BenchLinear(bench, type, shape, rows, false);
        BenchOneDnn(bench, type, shape, rows);
      }
    }
  }
}
#endif

int Main(int argc, char** argv) {
  CLI::App app("Ops x shapes on the CPU");
  std::string filter, json, commit;
  int threads = 1;
  bool onednn = false, busy = false;
  app.add_option("--filter", filter, "Run only cases whose name contains this text.");
  app.add_option("--threads", threads, "Number of compute threads.")->check(CLI::Range(1, 1024));
  app.add_flag("--busy", busy, "Also measure with one busy thread on every core.");
  app.add_option("--json", json, "Also write the results as JSON to this file.");
  app.add_option("--commit", commit, "Commit id that is written to the JSON file.");
#ifdef QUINTET_ONEDNN
  app.add_flag("--onednn", onednn, "Only large GEMMs, compared with oneDNN.");
#endif
  CLI11_PARSE(app, argc, argv);
  Bench bench(threads, busy, filter);
  bench.SetPeaks(MeasurePeaks());
  std::printf("%s, %d threads, peaks of one thread: %.1f GFLOP/s f32, %.1f GB/s read\n",
              CpuIsaName(), threads, bench.peaks().flops * 1e-9, bench.peaks().read_bytes * 1e-9);
  if (onednn) {
#ifdef QUINTET_ONEDNN
    BenchAgainstOneDnn(bench);
#endif
  } else {
    BenchAll(bench);
  }
  if (json.empty()) return 0;
  const Json document = {{"cpu", CpuModel()},
                         {"date", Today()},
                         {"commit", commit},
                         {"isa", CpuIsaName()},
                         {"threads", threads},
                         {"time", bench.cpu_time() ? "thread CPU" : "wall"},
                         {"peak_gflops", bench.peaks().flops * 1e-9},
                         {"peak_read_gbs", bench.peaks().read_bytes * 1e-9},
                         {"results", bench.results()}};
  std::ofstream file(json);
  file << document.dump(1) << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) { return quintet::Main(argc, argv); }
#endif
