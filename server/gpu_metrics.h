// The metrics gpu_*: utilization and memory of the GPUs that serve models, read through NVIDIA's
// management library (NVML). It and the CUDA driver are opened with dlopen when the first GPU is in
// use; where they do not exist, there are no such metrics.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "server/metrics.h"

namespace quintet {

// The state of a GPU, of all processes that use it. Unset: the driver does not report the value.
struct GpuState {
  std::optional<double> utilization;  // fraction of the time in which a kernel ran, in [0, 1]
  std::optional<int64_t> memory_used_bytes, memory_total_bytes;
};

// Not thread-safe.
class GpuMonitor {
 public:
  // The files of the two libraries, for dlopen.
  struct Libraries {
    std::string nvml = "libnvidia-ml.so.1", cuda = "libcuda.so.1";
  };
  // Returns null if a library is missing, lacks a function or fails.
  static std::unique_ptr<GpuMonitor> Open(const Libraries& libraries);
  virtual ~GpuMonitor() = default;
  // Returns the state of CUDA device `ordinal`.
  virtual GpuState Read(int ordinal) = 0;
};

// Thread-safe.
class GpuMetrics {
 public:
  // `registry` must outlive this object.
  explicit GpuMetrics(prometheus::Registry* registry, GpuMonitor::Libraries libraries = {})
      : libraries_(std::move(libraries)), registry_(registry) {}
  // Updates the metrics: those of the GPUs `ordinals`. Called before each scrape.
  void Collect(const std::set<int>& ordinals);

 private:
  struct Series {
    std::unique_ptr<MetricFactory> factory;  // keeps the gauges
    MetricFactory::Gauges utilization, memory_used, memory_total;
    GpuState shown;
  };
  // Creates the gauges of the values that are set.
  Series MakeSeries(int ordinal, const GpuState& state) const;

  const GpuMonitor::Libraries libraries_;
  prometheus::Registry* const registry_;
  std::mutex mutex_;
  bool opened_ = false;                  // monitor_ has been opened, or could not be
  std::unique_ptr<GpuMonitor> monitor_;  // null: there is none
  std::map<int, Series> series_;         // by ordinal
};

}  // namespace quintet
