#include "server/metrics.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/check.h"

namespace quintet {
namespace {

const std::string kOtherAdapters = "other";  // a string: looked up without an allocation

const std::vector<double> kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                20,   40,   80,  160, 640, 2560};
const std::vector<double> kPerTokenBuckets = {.0005, .001, .0025, .005, .01, .025, .05, .075,
                                              .1,    .15,  .2,    .3,   .4,  .5,   .75, 1,
                                              2.5,   5,    7.5,   10,   20,  40,   80};
const std::vector<double> kRequestTimeBuckets = {
    .001, .0025, .005, .01, .025, .05, .1, .2, .3,  .5,  .8,  1,   1.5,  2,   2.5,
    5,    10,    15,   20,  30,   40,  50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokenBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                           500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kLoadBuckets = {.1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640};
const std::vector<double> kBatchBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};

// Returns `labels` and `more`; of a label that both have, the value in `more`.
prometheus::Labels Merged(prometheus::Labels labels, const prometheus::Labels& more) {
  for (const auto& [name, value] : more) labels[name] = value;
  return labels;
}

double CacheUsage(const EngineCounters& counters) {
  if (counters.pages_total == 0) return 0.0;
  return static_cast<double>(counters.pages_used) / static_cast<double>(counters.pages_total);
}

double Seconds(int64_t us) { return static_cast<double>(std::max<int64_t>(us, 0)) * 1e-6; }

void Observe(const MetricFactory::Histograms& histograms, double value) {
  histograms.Each([&](auto& histogram) { histogram.Observe(value); });
}

void Set(const MetricFactory::Gauges& gauges, double value) {
  gauges.Each([&](auto& gauge) { gauge.Set(value); });
}

void Increment(const MetricFactory::Counters& counters) {
  counters.Each([](auto& counter) { counter.Increment(); });
}

// Returns vLLM's finished_reason label for `reason`, or "" if vLLM does not count that reason.
std::string VllmReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
    case FinishReason::kError:
      return "abort";
    case FinishReason::kDone:
      return "";
  }
  return "";
}

}  // namespace

template <typename Metric, typename... Arguments>
Metric* MetricFactory::AddTo(prometheus::Family<Metric>* family, const prometheus::Labels& labels,
                             Arguments&&... arguments) {
  Metric* const metric = &family->Add(labels, std::forward<Arguments>(arguments)...);
  series_->removals.push_back([family, metric] { family->Remove(metric); });
  return metric;
}

template <typename Metric, typename Add>
AliasedMetric<Metric> MetricFactory::Make(const std::string& name, const Aliases& aliases,
                                          Add add) {
  AliasedMetric<Metric> metrics;
  metrics.Add(add("quintet_" + name, /*alias=*/false));
  if (!vllm_names_) return metrics;
  for (const std::string& alias : aliases) metrics.Add(add("vllm:" + alias, /*alias=*/true));
  return metrics;
}

MetricFactory::Counters MetricFactory::Counter(const std::string& name, const std::string& help,
                                               const Aliases& aliases,
                                               const prometheus::Labels& labels,
                                               const prometheus::Labels& alias_labels) {
  return Make<prometheus::Counter>(name, aliases, [&](const std::string& full, bool alias) {
    return AddTo(&prometheus::BuildCounter().Name(full).Help(help).Register(*registry_),
                 Merged(labels_, alias ? alias_labels : labels));
  });
}

MetricFactory::Gauges MetricFactory::Gauge(const std::string& name, const std::string& help,
                                           const Aliases& aliases,
                                           const prometheus::Labels& labels) {
  return Make<prometheus::Gauge>(name, aliases, [&](const std::string& full, bool) {
    return AddTo(&prometheus::BuildGauge().Name(full).Help(help).Register(*registry_),
                 Merged(labels_, labels));
  });
}

MetricFactory::Histograms MetricFactory::Histogram(const std::string& name, const std::string& help,
                                                   const std::vector<double>& buckets,
                                                   const Aliases& aliases) {
  return Make<prometheus::Histogram>(name, aliases, [&](const std::string& full, bool) {
    return AddTo(&prometheus::BuildHistogram().Name(full).Help(help).Register(*registry_), labels_,
                 buckets);
  });
}

RefusalMetrics::RefusalMetrics(MetricFactory maker) : maker_(maker) {
  for (const char* reason : {"INVALID_FIELD", "MODEL_NOT_FOUND", "HEAD_MISSING", "QUEUE_FULL",
                             "NOT_READY", "QUEUED", "AUTH", "NO_METHOD", "OUT_OF_MEMORY", "BUG"}) {
    rejected_[reason] = maker.Counter(
        "requests_rejected_total", "Requests rejected before they reached the engine, by reason.",
        {}, {{"reason", reason}});
  }
}

void RefusalMetrics::Rejected(const std::string& reason) {
  const auto found = rejected_.find(reason);
  if (found != rejected_.end()) Increment(found->second);
}

PolledCounter::PolledCounter(MetricFactory maker, const std::string& name, const std::string& help,
                             std::function<int64_t()> total, const prometheus::Labels& labels)
    : total_(std::move(total)),
      maker_(maker),
      counter_(maker.Counter(name, help, /*aliases=*/{}, labels)) {}

void PolledCounter::Collect() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t total = total_();
  counter_.Each([&](auto& counter) { counter.Increment(static_cast<double>(total - collected_)); });
  collected_ = total;
}

ModelMetrics::ModelMetrics(const Options& options, prometheus::Registry* registry)
    : make_(options.model_name, options.vllm_names, registry),
      refusals_(make_),
      options_(options),
      registry_(registry) {
  running_ = make_.Gauge("requests_running", "Requests that are being encoded or decoded.",
                         {"num_requests_running"});
  waiting_ = make_.Gauge("requests_waiting", "Requests that are accepted but not started.",
                         {"num_requests_waiting"});
  cache_usage_ =
      make_.Gauge("kv_cache_usage_ratio", "Used fraction of the KV cache pages, in [0, 1].",
                  {"kv_cache_usage_perc", "gpu_cache_usage_perc"});
  queue_tokens_ = make_.Gauge("queue_tokens", "Input tokens of waiting requests.");
  ready_ = make_.Gauge("ready", "1 while the model accepts requests, otherwise 0.");
  Set(make_.Gauge("build_info", "Always 1.", {}, {{"version", options.version}}), 1);
  version_ = make_.Gauge("model_version", "Number of the version that serves; 0: none.");
  retired_ = make_.Gauge("model_versions_retired",
                         "Versions that no longer serve new calls and are not freed yet.");
  const auto loads = [&](const char* outcome) {
    return make_.Counter("model_loads_total", "Loads of the model, by outcome.", {},
                         {{"outcome", outcome}});
  };
  loads_ = loads("loaded");
  failed_loads_ = loads("failed");
  unloads_ = make_.Counter("model_unloads_total",
                           "How often the model was unloaded, replacements not counted.");
  load_seconds_ = make_.Histogram("model_load_seconds", "Seconds that a load took, with warm-up.",
                                  kLoadBuckets);

  for (const char* rpc : {"Generate", "GenerateStream", "Encode", "EncodeStream", "Score",
                          "Classify", "ModelInfer", "ModelStreamInfer"}) {
    accepted_[rpc] = make_.Counter("requests_accepted_total",
                                   "Requests submitted to the engine, by RPC.", {}, {{"rpc", rpc}});
  }
  for (FinishReason reason :
       {FinishReason::kEos, FinishReason::kStop, FinishReason::kLength, FinishReason::kDone,
        FinishReason::kCancelled, FinishReason::kDeadline, FinishReason::kError}) {
    const std::string vllm = VllmReason(reason);
    finished_[FinishReasonName(reason)] = make_.Counter(
        "requests_finished_total", "Requests that ended, by reason.",
        vllm.empty() ? MetricFactory::Aliases{} : MetricFactory::Aliases{"request_success_total"},
        {{"reason", FinishReasonName(reason)}}, {{"finished_reason", vllm}});
  }
  const auto counter = [&](const std::string& name, const std::string& help,
                           const MetricFactory::Aliases& aliases = {}) {
    return make_.Counter(name, help, aliases);
  };
  prompt_tokens_ =
      counter("prompt_tokens_total", "Input tokens of started requests.", {"prompt_tokens_total"});
  generation_tokens_ =
      counter("generation_tokens_total", "Tokens generated.", {"generation_tokens_total"});
  preemptions_ =
      counter("preemptions_total",
              "Preempted requests. Always 0: KV cache pages are reserved when a request starts.",
              {"num_preemptions_total"});
  cache_queries_ =
      counter("encoder_cache_queries_total", "Inputs that were looked up in the encoder cache.");
  cache_hits_ = counter("encoder_cache_hits_total", "Inputs that were found in the encoder cache.");
  MakeHistograms();
}

void ModelMetrics::MakeHistograms() {
  // Makes a histogram whose vLLM name differs from the native name only in the prefix.
  const auto same = [&](const std::string& name, const std::string& help,
                        const std::vector<double>& buckets) {
    return make_.Histogram(name, help, buckets, {name});
  };
  first_token_ = same("time_to_first_token_seconds", "Seconds from arrival to the first token.",
                      kFirstTokenBuckets);
  inter_token_ = make_.Histogram(
      "inter_token_latency_seconds", "Seconds between successive tokens of a request.",
      kPerTokenBuckets, {"inter_token_latency_seconds", "time_per_output_token_seconds"});
  per_output_token_ =
      same("request_time_per_output_token_seconds",
           "Decode seconds per generated token after the first, per request.", kPerTokenBuckets);
  e2e_ = same("e2e_request_latency_seconds", "Seconds from arrival to the response.",
              kRequestTimeBuckets);
  queue_time_ = same("request_queue_time_seconds", "Seconds in the queue.", kRequestTimeBuckets);
  encode_time_ = make_.Histogram("request_encode_time_seconds", "Seconds to encode the input.",
                                 kRequestTimeBuckets);
  prefill_time_ = same("request_prefill_time_seconds",
                       "Seconds from leaving the queue to the first token.", kRequestTimeBuckets);
  decode_time_ = same("request_decode_time_seconds", "Seconds from the first to the last token.",
                      kRequestTimeBuckets);
  inference_time_ = same("request_inference_time_seconds",
                         "Seconds from leaving the queue to the last token.", kRequestTimeBuckets);
  prompt_length_ = same("request_prompt_tokens", "Input tokens per request.", kTokenBuckets);
  generation_length_ =
      same("request_generation_tokens", "Tokens generated per request.", kTokenBuckets);
  max_generation_length_ =
      same("request_max_num_generation_tokens", "max_new_tokens per request.", kTokenBuckets);
  batch_size_ = make_.Histogram("step_batch_size", "Sequences per decoder step.", kBatchBuckets);
}

void ModelMetrics::Loaded(const LoadedVersion& loaded) {
  Increment(loads_);
  Observe(load_seconds_, loaded.seconds);
  Set(version_, static_cast<double>(loaded.version));
  std::lock_guard<std::mutex> lock(mutex_);
  engines_.clear();
  serving_.reset();  // before metrics with perhaps the same labels are made
  serving_version_ = loaded.version;
  serving_ = std::make_unique<MetricFactory>(options_.model_name, options_.vllm_names, registry_);
  Set(serving_->Gauge("cache_config_info",
                      "Always 1. KV cache: number of pages and tokens per page, as labels.",
                      {"cache_config_info"},
                      {{"block_size", std::to_string(loaded.page_size)},
                       {"num_gpu_blocks", std::to_string(loaded.pages)}}),
      1);
  if (loaded.gpu == nullptr) return;
  const MemoryPlan& plan = *loaded.gpu;
  const std::pair<const char*, int64_t> kinds[] = {
      {"weights", plan.model.weights}, {"adapters", plan.model.adapters},
      {"cache", plan.model.cache},     {"workspace", plan.model.workspace},
      {"search", plan.search},         {"runtime", plan.runtime}};
  for (const auto& [kind, bytes] : kinds) {
    Set(serving_->Gauge("gpu_memory_bytes", "GPU memory in bytes, planned at load, by use.", {},
                        {{"kind", kind}}),
        static_cast<double>(bytes));
  }
}

void ModelMetrics::SetAdapters(std::span<const AdapterSource> adapters, int64_t slots) {
  adapter_usage_.SetAdapters(adapters);
  std::lock_guard<std::mutex> lock(mutex_);
  adapter_slots_ = adapters.empty() ? 0 : slots;
  std::erase_if(adapters_, [&](const auto& series) {
    return series.first != kOtherAdapters &&
           std::none_of(adapters.begin(), adapters.end(),
                        [&](const AdapterSource& adapter) { return adapter.name == series.first; });
  });
  for (const AdapterSource& adapter : adapters) {
    const bool own = adapters_.size() < kMaxCountedAdapters || adapters_.count(adapter.name) > 0;
    const std::string& label = own ? adapter.name : kOtherAdapters;
    AdapterSeries& series = adapters_[label];
    if (series.factory != nullptr) continue;
    series.factory =
        std::make_unique<MetricFactory>(options_.model_name, options_.vllm_names, registry_);
    series.requests = series.factory->Counter(
        "adapter_requests_total",
        "Requests submitted to the engine with a LoRA adapter, by its name.", {},
        {{"adapter", label}});
  }
}

void ModelMetrics::SetAdapterInfo() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (adapter_slots_ == 0) {
    adapter_info_.reset();
    adapter_info_labels_.clear();
    return;
  }
  AdapterUsage::Names names = adapter_usage_.names();
  prometheus::Labels labels = {{"max_lora", std::to_string(adapter_slots_)},
                               {"running_lora_adapters", std::move(names.running)},
                               {"waiting_lora_adapters", std::move(names.waiting)}};
  if (adapter_info_ == nullptr || labels != adapter_info_labels_) {
    adapter_info_.reset();
    adapter_info_ =
        std::make_unique<MetricFactory>(options_.model_name, options_.vllm_names, registry_);
    adapter_info_gauge_ = adapter_info_->Gauge(
        "lora_requests_info",
        "Time of the scrape in seconds since 1970. Adapters of running and waiting requests, and "
        "how many can run at the same time, as labels.",
        {"lora_requests_info"}, labels);
    adapter_info_labels_ = std::move(labels);
  }
  Set(adapter_info_gauge_, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
}

void ModelMetrics::LoadFailed() { Increment(failed_loads_); }

void ModelMetrics::Unloaded() { Increment(unloads_); }

void ModelMetrics::NotServing() {
  Set(version_, 0);
  std::lock_guard<std::mutex> lock(mutex_);
  engines_.clear();
  serving_.reset();
}

void ModelMetrics::SetState(bool ready, int64_t retired) {
  Set(ready_, ready ? 1 : 0);
  Set(retired_, static_cast<double>(retired));
}

// Must not allocate (std::map::at would, for a key of 16 bytes): if an allocation failed here, the
// call would end although the engine has its request.
void ModelMetrics::Accepted(const char* rpc) {
  const auto found = std::find_if(accepted_.begin(), accepted_.end(),
                                  [rpc](const auto& entry) { return entry.first == rpc; });
  QT_CHECK(found != accepted_.end());
  Increment(found->second);
}

// This function does not allocate either.
void ModelMetrics::AcceptedAdapter(const std::string& adapter) {
  adapter_usage_.Submitted(adapter);
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = adapters_.find(adapter);
  if (found == adapters_.end()) found = adapters_.find(kOtherAdapters);
  if (found != adapters_.end()) Increment(found->second.requests);
}

void ModelMetrics::Finished(FinishReason reason, const Result* result, const RequestStats& stats) {
  Increment(finished_.at(FinishReasonName(reason)));
  if (result == nullptr) return;
  last_finished_ms_.store(absl::ToUnixMillis(absl::Now()), std::memory_order_relaxed);
  Observe(prompt_length_, static_cast<double>(result->input_tokens));
  ObserveTimes(*result, stats.before_engine_us);
  if (result->sequences.empty()) return;
  Observe(generation_length_, static_cast<double>(result->output_tokens));
  Observe(max_generation_length_, static_cast<double>(stats.max_new_tokens));
}

void ModelMetrics::ObserveTimes(const Result& result, int64_t before_engine_us) {
  const Timing& t = result.timing;
  Observe(e2e_, Seconds(t.total_us + before_engine_us));
  Observe(queue_time_, Seconds(t.queue_us));
  Observe(encode_time_, Seconds(t.encode_us));
  Observe(inference_time_, Seconds(t.total_us - t.queue_us));
  if (result.sequences.empty()) return;
  const int64_t decode_us = t.total_us - t.first_token_us;
  Observe(first_token_, Seconds(t.first_token_us + before_engine_us));
  Observe(prefill_time_, Seconds(t.first_token_us - t.queue_us));
  Observe(decode_time_, Seconds(decode_us));
  size_t longest = 0;
  for (const GeneratedSequence& s : result.sequences) {
    longest = std::max(longest, s.token_ids.size());
  }
  if (longest > 1) {
    Observe(per_output_token_, Seconds(decode_us) / static_cast<double>(longest - 1));
  }
}

ModelMetrics::Totals ModelMetrics::totals() const {
  const auto duration = [](const Histograms& histograms) {
    const auto values = histograms.native().Collect().histogram;
    return Totals::Duration{values.sample_count, values.sample_sum};
  };
  Totals totals;
  for (FinishReason reason :
       {FinishReason::kEos, FinishReason::kStop, FinishReason::kLength, FinishReason::kDone,
        FinishReason::kCancelled, FinishReason::kDeadline, FinishReason::kError}) {
    const double count = finished_.at(FinishReasonName(reason)).native().Value();
    const bool failed = reason == FinishReason::kCancelled || reason == FinishReason::kDeadline ||
                        reason == FinishReason::kError;
    (failed ? totals.failed : totals.succeeded) += static_cast<uint64_t>(count);
    if (reason == FinishReason::kError) totals.errors = static_cast<uint64_t>(count);
  }
  totals.steps = duration(batch_size_).count;
  totals.e2e = duration(e2e_);
  totals.queue = duration(queue_time_);
  totals.inference = duration(inference_time_);
  totals.last_finished_ms = last_finished_ms_.load(std::memory_order_relaxed);
  return totals;
}

void ModelMetrics::OnStep(const StepReport& report, std::vector<double>* increments) {
  if (report.sequences > 0) Observe(batch_size_, static_cast<double>(report.sequences));
  if (report.token_gaps_us.empty()) return;
  std::fill(increments->begin(), increments->end(), 0.0);
  double sum = 0.0;
  for (const int64_t gap_us : report.token_gaps_us) {
    const double seconds = Seconds(gap_us);
    const auto bucket = std::lower_bound(kPerTokenBuckets.begin(), kPerTokenBuckets.end(), seconds);
    (*increments)[static_cast<size_t>(bucket - kPerTokenBuckets.begin())] += 1.0;
    sum += seconds;
  }
  inter_token_.Each([&](auto& histogram) { histogram.ObserveMultiple(*increments, sum); });
}

StepMetrics::StepMetrics(ModelMetrics* metrics)
    : metrics_(metrics), increments_(kPerTokenBuckets.size() + 1) {}

void ModelMetrics::Count(const EngineCounters& now, const EngineCounters& before) {
  const auto raise = [](const Counters& metric, int64_t increment) {
    metric.Each([&](auto& counter) { counter.Increment(static_cast<double>(increment)); });
  };
  raise(prompt_tokens_, now.prompt_tokens - before.prompt_tokens);
  raise(generation_tokens_, now.generated_tokens - before.generated_tokens);
  raise(cache_queries_, now.encoder_cache_queries - before.encoder_cache_queries);
  raise(cache_hits_, now.encoder_cache_hits - before.encoder_cache_hits);
}

void ModelMetrics::SetEngines(uint64_t version, std::span<const EngineGroup::State> engines) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (serving_ == nullptr || version != serving_version_) return;
  while (engines_.size() < engines.size()) {
    const prometheus::Labels label = {{"engine", std::to_string(engines_.size())}};
    engines_.push_back(
        {serving_->Gauge("engine_up", "1 while the engine works, 0 after its device has failed.",
                         {}, label),
         serving_->Gauge("engine_requests_running", "Requests that the engine encodes or decodes.",
                         {}, label),
         serving_->Gauge("engine_requests_waiting",
                         "Requests that the engine has and has not started.", {}, label),
         serving_->Gauge("engine_kv_cache_usage_ratio",
                         "Used fraction of the engine's KV cache pages, in [0, 1].", {}, label),
         serving_->Counter("engine_generation_tokens_total",
                           "Tokens that the engine has generated.", {}, label)});
  }
  for (size_t i = 0; i < engines.size(); ++i) {
    const EngineCounters& counters = engines[i].counters;
    Set(engines_[i].works, engines[i].works ? 1 : 0);
    Set(engines_[i].running, static_cast<double>(counters.running));
    Set(engines_[i].waiting, static_cast<double>(counters.waiting));
    Set(engines_[i].cache_usage, CacheUsage(counters));
    engines_[i].generation_tokens.Each([&](auto& counter) {
      counter.Increment(static_cast<double>(counters.generated_tokens) - counter.Value());
    });
  }
}

void ModelMetrics::SetGauges(const EngineCounters& sum, int64_t waiting, int64_t queue_tokens) {
  Set(running_, static_cast<double>(sum.running));
  Set(waiting_, static_cast<double>(waiting));
  Set(queue_tokens_, static_cast<double>(queue_tokens));
  Set(cache_usage_, CacheUsage(sum));
  SetAdapterInfo();
}

}  // namespace quintet
