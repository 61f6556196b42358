// The metrics process_*, which Prometheus's client libraries export under these names: CPU time,
// memory, file descriptors and start of this process.
#pragma once

#include <cstdint>
#include <mutex>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace quintet {

struct ProcessUsage {
  double cpu_seconds = 0;    // user and system time of all threads
  double start_seconds = 0;  // when the process started, in seconds since 1970
  int64_t resident_bytes = 0, virtual_bytes = 0;
  int64_t open_fds = 0, max_fds = 0;  // file descriptors; the soft limit
};
// Values that the system does not report are 0.
ProcessUsage ReadProcessUsage();

class ProcessMetrics {
 public:
  // `registry` must outlive this object.
  explicit ProcessMetrics(prometheus::Registry* registry);
  // Updates the metrics. Called before each scrape. Thread-safe.
  void Collect();

 private:
  std::mutex mutex_;
  prometheus::Counter& cpu_;
  prometheus::Gauge &resident_, &virtual_, &start_, &open_fds_, &max_fds_;
};

}  // namespace quintet
