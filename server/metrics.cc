#include "server/metrics.h"

#include <algorithm>

#include "prometheus/family.h"

namespace quintet {
namespace {

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

prometheus::Labels Merged(prometheus::Labels labels, const prometheus::Labels& more) {
  labels.insert(more.begin(), more.end());
  return labels;
}

// vLLM's finished_reason for ours; empty: not counted there.
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

ModelMetrics::Counters ModelMetrics::AddCounter(const std::string& name, const std::string& help,
                                                const std::string& alias,
                                                const prometheus::Labels& labels,
                                                const prometheus::Labels& alias_labels) {
  Counters counters;
  const auto add = [&](const std::string& full_name, const prometheus::Labels& extra) {
    counters.Add(&prometheus::BuildCounter()
                      .Name(full_name)
                      .Help(help)
                      .Register(*registry_)
                      .Add(Merged(labels_, extra)));
  };
  add("quintet_" + name, labels);
  if (vllm_names_ && !alias.empty()) add("vllm:" + alias, alias_labels);
  return counters;
}

ModelMetrics::Gauges ModelMetrics::AddGauge(const std::string& name, const std::string& help,
                                            const std::vector<std::string>& aliases,
                                            const prometheus::Labels& labels) {
  Gauges gauges;
  const auto add = [&](const std::string& full_name) {
    gauges.Add(&prometheus::BuildGauge()
                    .Name(full_name)
                    .Help(help)
                    .Register(*registry_)
                    .Add(Merged(labels_, labels)));
  };
  add("quintet_" + name);
  if (vllm_names_) {
    for (const std::string& alias : aliases) add("vllm:" + alias);
  }
  return gauges;
}

ModelMetrics::Histograms ModelMetrics::AddHistogram(const std::string& name,
                                                    const std::string& help,
                                                    const std::vector<std::string>& aliases,
                                                    const std::vector<double>& buckets) {
  Histograms histograms;
  const auto add = [&](const std::string& full_name) {
    histograms.Add(&prometheus::BuildHistogram()
                        .Name(full_name)
                        .Help(help)
                        .Register(*registry_)
                        .Add(labels_, buckets));
  };
  add("quintet_" + name);
  if (vllm_names_) {
    for (const std::string& alias : aliases) add("vllm:" + alias);
  }
  return histograms;
}

ModelMetrics::ModelMetrics(const Options& options, prometheus::Registry* registry)
    : registry_(registry),
      labels_{{"model_name", options.model_name}, {"engine", "0"}},
      vllm_names_(options.vllm_names) {
  running_ = AddGauge("requests_running", "Requests being encoded or decoded.",
                      {"num_requests_running"}, {});
  waiting_ = AddGauge("requests_waiting", "Requests accepted and not yet started.",
                      {"num_requests_waiting"}, {});
  cache_usage_ =
      AddGauge("kv_cache_usage_ratio", "Used share of the pages of keys and values, 0 to 1.",
               {"kv_cache_usage_perc", "gpu_cache_usage_perc"}, {});
  queue_tokens_ = AddGauge("queue_tokens", "Input tokens of waiting requests.", {}, {});
  ready_ = AddGauge("ready", "1 while the model takes requests.", {}, {});
  AddGauge("build_info", "Always 1.", {}, {{"version", options.version}}).Each([](auto& g) {
    g.Set(1);
  });
  AddGauge("cache_config_info", "Always 1.", {"cache_config_info"},
           {{"block_size", std::to_string(options.page_size)},
            {"cache_bytes", std::to_string(options.cache_bytes)}})
      .Each([](auto& g) { g.Set(1); });

  for (const char* rpc :
       {"Generate", "GenerateStream", "Encode", "EncodeStream", "Score", "Classify"}) {
    accepted_[rpc] = AddCounter("requests_accepted_total", "Requests given to the engine.", "",
                                {{"rpc", rpc}}, {});
  }
  for (FinishReason reason :
       {FinishReason::kEos, FinishReason::kStop, FinishReason::kLength, FinishReason::kDone,
        FinishReason::kCancelled, FinishReason::kDeadline, FinishReason::kError}) {
    const std::string vllm_reason = VllmReason(reason);
    finished_[FinishReasonName(reason)] =
        AddCounter("requests_finished_total", "Requests ended, by reason.",
                   vllm_reason.empty() ? "" : "request_success_total",
                   {{"reason", FinishReasonName(reason)}}, {{"finished_reason", vllm_reason}});
  }
  for (const char* reason : {"INVALID_FIELD", "MODEL_NOT_FOUND", "HEAD_MISSING", "QUEUE_FULL",
                             "NOT_READY", "QUEUED", "AUTH", "BUG"}) {
    rejected_[reason] =
        AddCounter("requests_rejected_total", "Requests refused at the door, by ErrorInfo.reason.",
                   "", {{"reason", reason}}, {});
  }
  prompt_tokens_ = AddCounter("prompt_tokens_total", "Input tokens of finished requests.",
                              "prompt_tokens_total", {}, {});
  generation_tokens_ =
      AddCounter("generation_tokens_total", "Tokens generated.", "generation_tokens_total", {}, {});
  preemptions_ =
      AddCounter("preemptions_total",
                 "Running requests set back; pages are reserved at the start, so always 0.",
                 "num_preemptions_total", {}, {});
  cache_queries_ = AddCounter("encoder_cache_queries_total",
                              "Inputs looked up in the encoder-output cache.", "", {}, {});
  cache_hits_ = AddCounter("encoder_cache_hits_total", "Inputs found there.", "", {}, {});

  const auto times = [&](const std::string& name, const std::string& help,
                         const std::string& alias) {
    return AddHistogram(
        name, help, alias.empty() ? std::vector<std::string>{} : std::vector<std::string>{alias},
        kRequestTimeBuckets);
  };
  first_token_ = AddHistogram("time_to_first_token_seconds", "Arrival to first token.",
                              {"time_to_first_token_seconds"}, kFirstTokenBuckets);
  per_output_token_ = AddHistogram("request_time_per_output_token_seconds",
                                   "Decoding time over tokens, per request.",
                                   {"request_time_per_output_token_seconds"}, kPerTokenBuckets);
  e2e_ = times("e2e_request_latency_seconds", "Arrival to answer.", "e2e_request_latency_seconds");
  queue_time_ = times("request_queue_time_seconds", "Waiting.", "request_queue_time_seconds");
  encode_time_ = times("request_encode_time_seconds", "Encoding the input.", "");
  prefill_time_ = times("request_prefill_time_seconds", "Start to first token.",
                        "request_prefill_time_seconds");
  decode_time_ =
      times("request_decode_time_seconds", "First token to last.", "request_decode_time_seconds");
  inference_time_ = times("request_inference_time_seconds", "Start to last token.",
                          "request_inference_time_seconds");
  prompt_length_ = AddHistogram("request_prompt_tokens", "Input tokens per request.",
                                {"request_prompt_tokens"}, kTokenBuckets);
  generation_length_ = AddHistogram("request_generation_tokens", "Tokens generated per request.",
                                    {"request_generation_tokens"}, kTokenBuckets);
  max_generation_length_ =
      AddHistogram("request_max_num_generation_tokens", "Most tokens a request may generate.",
                   {"request_max_num_generation_tokens"}, kTokenBuckets);
}

void ModelMetrics::Accepted(const char* rpc) {
  accepted_.at(rpc).Each([](auto& counter) { counter.Increment(); });
}

void ModelMetrics::Rejected(const std::string& reason) {
  const auto found = rejected_.find(reason);
  if (found != rejected_.end()) found->second.Each([](auto& counter) { counter.Increment(); });
}

void ModelMetrics::Finished(FinishReason reason, const Result* result, int64_t max_new_tokens) {
  finished_.at(FinishReasonName(reason)).Each([](auto& counter) { counter.Increment(); });
  if (result == nullptr) return;
  const auto observe = [](const Histograms& histograms, double value) {
    histograms.Each([&](auto& histogram) { histogram.Observe(value); });
  };
  observe(prompt_length_, static_cast<double>(result->input_tokens));
  prompt_tokens_.Each(
      [&](auto& counter) { counter.Increment(static_cast<double>(result->input_tokens)); });
  ObserveTimes(*result);
  if (result->sequences.empty()) return;
  observe(generation_length_, static_cast<double>(result->output_tokens));
  observe(max_generation_length_, static_cast<double>(max_new_tokens));
  generation_tokens_.Each(
      [&](auto& counter) { counter.Increment(static_cast<double>(result->output_tokens)); });
}

void ModelMetrics::ObserveTimes(const Result& result) {
  const auto observe = [](const Histograms& histograms, int64_t us) {
    histograms.Each([&](auto& histogram) {
      histogram.Observe(static_cast<double>(std::max<int64_t>(us, 0)) * 1e-6);
    });
  };
  const Timing& t = result.timing;
  observe(e2e_, t.total_us);
  observe(queue_time_, t.queue_us);
  observe(encode_time_, t.encode_us);
  observe(inference_time_, t.total_us - t.queue_us);
  if (result.sequences.empty()) return;
  observe(first_token_, t.first_token_us);
  observe(prefill_time_, t.first_token_us - t.queue_us);
  observe(decode_time_, t.decode_us);
  const int64_t longest = static_cast<int64_t>(result.sequences[0].token_ids.size());
  if (longest > 1) observe(per_output_token_, t.decode_us / (longest - 1));
}

void ModelMetrics::Ready(bool ready) {
  ready_.Each([&](auto& gauge) { gauge.Set(ready ? 1 : 0); });
}

void ModelMetrics::Collect(const EngineCounters& counters, int64_t waiting, int64_t queue_tokens) {
  const auto set = [](const Gauges& gauges, double value) {
    gauges.Each([&](auto& gauge) { gauge.Set(value); });
  };
  set(running_, static_cast<double>(counters.running));
  set(waiting_, static_cast<double>(waiting));
  set(queue_tokens_, static_cast<double>(queue_tokens));
  set(cache_usage_, counters.pages_total == 0 ? 0.0
                                              : static_cast<double>(counters.pages_used) /
                                                    static_cast<double>(counters.pages_total));
  const auto raise = [](const Counters& metric, int64_t now, int64_t* before) {
    metric.Each([&](auto& counter) { counter.Increment(static_cast<double>(now - *before)); });
    *before = now;
  };
  std::lock_guard<std::mutex> lock(mutex_);
  raise(cache_queries_, counters.encoder_cache_queries, &collected_.encoder_cache_queries);
  raise(cache_hits_, counters.encoder_cache_hits, &collected_.encoder_cache_hits);
}

}  // namespace quintet
