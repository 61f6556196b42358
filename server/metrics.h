// Prometheus metrics of the server, one set per model. Label values come from the command line,
// never from requests. Thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace quintet {

// A metric under its native name and, with --metrics-compat=vllm, under vLLM's names as well.
template <typename Metric>
class Aliased {
 public:
  void Add(Metric* metric) { metrics_.push_back(metric); }
  template <typename Action>
  void Each(Action action) const {
    for (Metric* metric : metrics_) action(*metric);
  }

 private:
  std::vector<Metric*> metrics_;
};

class ModelMetrics {
 public:
  struct Options {
    std::string model_name;
    bool vllm_names = false;
    std::string version;
    int64_t page_size = 0, cache_bytes = 0;
  };
  ModelMetrics(const Options& options, prometheus::Registry* registry);

  void Accepted(const char* rpc);
  void Rejected(const std::string& reason);  // ErrorInfo.reason
  // Once for every accepted request, with its result when it has one.
  void Finished(FinishReason reason, const Result* result, int64_t max_new_tokens);
  void Ready(bool ready);
  // Copies the engine's counters into gauges and counters; called before each scrape.
  void Collect(const EngineCounters& counters, int64_t waiting, int64_t queue_tokens);

 private:
  using Counters = Aliased<prometheus::Counter>;
  using Gauges = Aliased<prometheus::Gauge>;
  using Histograms = Aliased<prometheus::Histogram>;

  Counters AddCounter(const std::string& name, const std::string& help, const std::string& alias,
                      const prometheus::Labels& labels, const prometheus::Labels& alias_labels);
  Gauges AddGauge(const std::string& name, const std::string& help,
                  const std::vector<std::string>& aliases, const prometheus::Labels& labels);
  Histograms AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<std::string>& aliases,
                          const std::vector<double>& buckets);
  void ObserveTimes(const Result& result);

  prometheus::Registry* registry_;
  std::mutex mutex_;  // of collected_
  prometheus::Labels labels_;
  bool vllm_names_;
  EngineCounters collected_;  // what the counters below hold already

  Gauges running_, waiting_, cache_usage_, queue_tokens_, ready_;
  std::map<std::string, Counters> accepted_, finished_, rejected_;
  Counters prompt_tokens_, generation_tokens_, cache_queries_, cache_hits_, preemptions_;
  Histograms first_token_, per_output_token_, e2e_;
  Histograms queue_time_, encode_time_, prefill_time_, decode_time_, inference_time_;
  Histograms prompt_length_, generation_length_, max_generation_length_;
};

}  // namespace quintet
