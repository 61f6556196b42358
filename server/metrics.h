// Prometheus metrics of the server: one set for each model, and counters for rejected RPCs whose
// model is unknown. Label values come from the command line, never from requests. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_group.h"
#include "engine/memory_plan.h"
#include "engine/request.h"
#include "models/model.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/adapter_usage.h"

namespace quintet {

// One metric under its native name and, with --metrics-compat=vllm, also under the vLLM names.
template <typename Metric>
class AliasedMetric {
 public:
  void Add(Metric* metric) { metrics_.push_back(metric); }
  template <typename Action>
  void Each(Action action) const {
    for (Metric* metric : metrics_) action(*metric);
  }
  // The metric under its native name.
  const Metric& native() const { return *metrics_.front(); }

 private:
  std::vector<Metric*> metrics_;
};

// Value of the label model_name for metrics that belong to no model. It is not empty, because
// Prometheus treats an empty label as a missing one.
inline constexpr char kNoModel[] = "none";

// Creates the metrics of one model in a registry. The metrics are removed from the registry with
// the last copy of this object. The registry must outlive it, and no two factories may hold metrics
// of equal names and labels at the same time.
class MetricFactory {
 public:
  using Counters = AliasedMetric<prometheus::Counter>;
  using Gauges = AliasedMetric<prometheus::Gauge>;
  using Histograms = AliasedMetric<prometheus::Histogram>;
  using Aliases = std::vector<std::string>;  // vLLM names without the prefix "vllm:"

  MetricFactory(const std::string& model_name, bool vllm_names, prometheus::Registry* registry)
      : registry_(registry),
        labels_{{"model_name", model_name}, {"engine", "0"}},
        vllm_names_(vllm_names),
        series_(std::make_shared<Series>()) {}

  // `labels` are added to the metric with the native name, `alias_labels` to the vLLM metrics.
  Counters Counter(const std::string& name, const std::string& help, const Aliases& aliases = {},
                   const prometheus::Labels& labels = {},
                   const prometheus::Labels& alias_labels = {});
  Gauges Gauge(const std::string& name, const std::string& help, const Aliases& aliases = {},
               const prometheus::Labels& labels = {});
  Histograms Histogram(const std::string& name, const std::string& help,
                       const std::vector<double>& buckets, const Aliases& aliases = {});

 private:
  // The metrics that the factory has made. The destructor removes them from the registry.
  struct Series {
    ~Series() {
      for (const std::function<void()>& remove : removals) remove();
    }
    std::vector<std::function<void()>> removals;
  };

  template <typename Metric, typename Add>
  AliasedMetric<Metric> Make(const std::string& name, const Aliases& aliases, Add add);
  // Adds a metric to `family`.
  template <typename Metric, typename... Arguments>
  Metric* AddTo(prometheus::Family<Metric>* family, const prometheus::Labels& labels,
                Arguments&&... arguments);

  prometheus::Registry* registry_;
  prometheus::Labels labels_;
  bool vllm_names_;
  std::shared_ptr<Series> series_;
};

// Counters of requests that were rejected before they reached the engine, by ErrorInfo.reason.
class RefusalMetrics {
 public:
  explicit RefusalMetrics(MetricFactory maker);
  void Rejected(const std::string& reason);

 private:
  const MetricFactory maker_;  // keeps the counters
  std::map<std::string, MetricFactory::Counters> rejected_;
};

// A counter of something that is counted elsewhere.
class PolledCounter {
 public:
  // `total` returns the value of the counter.
  PolledCounter(MetricFactory maker, const std::string& name, const std::string& help,
                std::function<int64_t()> total, const prometheus::Labels& labels = {});
  // Updates the counter. Called before each scrape.
  void Collect();

 private:
  const std::function<int64_t()> total_;
  const MetricFactory maker_;  // keeps the counter
  const MetricFactory::Counters counter_;
  std::mutex mutex_;
  int64_t collected_ = 0;  // the value of counter_
};

// The metrics of one model. All versions (loads) of the model share them, so that counters and
// histograms continue when a version is replaced or the model is unloaded.
class ModelMetrics {
 public:
  struct Options {
    std::string model_name;
    bool vllm_names = false;
    std::string version;
  };
  ModelMetrics(const Options& options, prometheus::Registry* registry);

  // Records that a model version serves from now on: exports its number, the configuration of its
  // KV cache and, if `gpu` is not null, its planned GPU memory. `seconds`: how long loading took.
  struct LoadedVersion {
    uint64_t version = 0;
    int64_t page_size = 0, pages = 0;
    const MemoryPlan* gpu = nullptr;
    double seconds = 0;
  };
  void Loaded(const LoadedVersion& loaded);
  void LoadFailed();
  void Unloaded();
  // No version serves any more.
  void NotServing();
  // Sets whether calls are accepted, and the number of model versions retired but not freed.
  void SetState(bool ready, int64_t retired);
  void Accepted(const char* rpc);
  // Sets the LoRA adapters that requests can name. Up to kMaxCountedAdapters of them have a counter
  // each, which keeps its value until a call of SetAdapters omits the adapter. All other adapters
  // share one counter with the label "other".
  // `slots`: how many of them requests can use at the same time.
  void SetAdapters(std::span<const AdapterSource> adapters, int64_t slots);
  // Record that a request with an adapter was submitted to the engine, was started, and has ended.
  void AcceptedAdapter(const std::string& adapter);
  void StartedAdapter(const std::string& adapter) { adapter_usage_.Started(adapter); }
  void FinishedAdapter(const std::string& adapter, bool started) {
    adapter_usage_.Ended(adapter, started);
  }
  static constexpr size_t kMaxCountedAdapters = 100;
  void Rejected(const std::string& reason) { refusals_.Rejected(reason); }
  struct RequestStats {
    int64_t max_new_tokens = 0;
    int64_t before_engine_us = 0;  // from the arrival of the request until the engine got it
  };
  // Called once for every accepted request, before its response is sent. `result` is null if the
  // request failed.
  void Finished(FinishReason reason, const Result* result, const RequestStats& stats);
  // Counts one step of a model version's engine. `increments` is scratch memory of that engine.
  void OnStep(const StepReport& report, std::vector<double>* increments);

  // Sums over all requests since the start, computed from the metrics. The durations include only
  // requests that succeeded.
  struct Totals {
    struct Duration {
      uint64_t count = 0;
      double seconds = 0;
    };
    uint64_t succeeded = 0, failed = 0, steps = 0;  // requests; decoder steps
    uint64_t errors = 0;                            // failed requests, by FinishReason::kError
    Duration e2e, queue, inference;
    int64_t last_finished_ms = 0;  // when the last request succeeded, since 1970; 0: none yet
  };
  Totals totals() const;
  // Adds to the metrics what an engine has counted between the snapshots `before` and `now`.
  void Count(const EngineCounters& now, const EngineCounters& before);
  // Sets the metrics of each engine of the model version `version`. Ignored unless that version is
  // the last one of Loaded. Called before each scrape.
  void SetEngines(uint64_t version, std::span<const EngineGroup::State> engines);
  // Sets the gauges. `sum`: running requests and KV cache pages of all model versions; `waiting`
  // and `queue_tokens`: the requests that wait in the queue of admission control, and their input
  // tokens. Called before each scrape.
  void SetGauges(const EngineCounters& sum, int64_t waiting, int64_t queue_tokens);

 private:
  using Counters = MetricFactory::Counters;
  using Gauges = MetricFactory::Gauges;
  using Histograms = MetricFactory::Histograms;

  void MakeHistograms();
  // Sets the gauge whose labels name the adapters of running and waiting requests.
  void SetAdapterInfo();
  void ObserveTimes(const Result& result, int64_t before_engine_us);

  MetricFactory make_;
  RefusalMetrics refusals_;
  const Options options_;
  prometheus::Registry* const registry_;
  // Metrics of one engine of the version that serves.
  struct EngineSeries {
    Gauges works, running, waiting, cache_usage;
    Counters generation_tokens;
  };
  std::mutex mutex_;  // guards the members about what serves, and about adapters
  std::unique_ptr<MetricFactory> serving_;  // metrics of the version that serves; may be null
  uint64_t serving_version_ = 0;            // which version that is
  std::vector<EngineSeries> engines_;       // its engines
  std::atomic<int64_t> last_finished_ms_{0};

  Gauges running_, waiting_, cache_usage_, queue_tokens_, ready_, version_, retired_;
  Counters loads_, failed_loads_, unloads_;
  Histograms load_seconds_;
  std::map<std::string, Counters> accepted_, finished_;
  struct AdapterSeries {
    std::unique_ptr<MetricFactory> factory;
    Counters requests;
  };
  std::map<std::string, AdapterSeries> adapters_;  // by the label's value
  AdapterUsage adapter_usage_;
  int64_t adapter_slots_ = 0;
  std::unique_ptr<MetricFactory> adapter_info_;  // null: the model has no adapters
  prometheus::Labels adapter_info_labels_;
  Gauges adapter_info_gauge_;
  Counters prompt_tokens_, generation_tokens_, cache_queries_, cache_hits_, preemptions_;
  Histograms first_token_, inter_token_, per_output_token_, e2e_;
  Histograms queue_time_, encode_time_, prefill_time_, decode_time_, inference_time_;
  Histograms prompt_length_, generation_length_, max_generation_length_, batch_size_;
};

// Observes the steps of one engine and counts them in the metrics of its model.
class StepMetrics final : public StepObserver {
 public:
  explicit StepMetrics(ModelMetrics* metrics);
  void OnStep(const StepReport& report) override { metrics_->OnStep(report, &increments_); }

 private:
  ModelMetrics* const metrics_;
  std::vector<double> increments_;  // [buckets + 1]
};

}  // namespace quintet
