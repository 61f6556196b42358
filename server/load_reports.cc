#include "server/load_reports.h"

#include <time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "engine/process_memory.h"
#include "kernels/runtime/cores.h"
#include "server/json_value.h"
#include "server/message_bytes.h"
#include "server/model_host.h"
#include "xds/service/orca/v3/orca.pb.h"

namespace quintet {
namespace {

using xds::data::orca::v3::OrcaLoadReport;
using xds::service::orca::v3::OrcaLoadReportRequest;

constexpr int64_t kShortestIntervalUs = 1'000'000, kLongestIntervalUs = 3'600'000'000;
// The watch thread calls Rpc::Check a little later than every second. A report that would be due
// within this time leaves with the check, not with the next one.
constexpr int64_t kSlackUs = 100'000;

double Fraction(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

int64_t IntervalUs(const OrcaLoadReportRequest& request) {
  const int64_t seconds = std::clamp<int64_t>(request.report_interval().seconds(), 0, 3600);
  const int64_t nanos = std::clamp(request.report_interval().nanos(), 0, 999'999'999);
  return std::clamp(seconds * 1'000'000 + nanos / 1000, kShortestIntervalUs, kLongestIntervalUs);
}

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The stream of reports of one client.
class LoadReportCall final : public RpcHandler {
 public:
  explicit LoadReportCall(const LoadMeter* meter) : meter_(meter) {}

  void OnMessage(grpc::ByteBuffer* message) override {
    OrcaLoadReportRequest request;
    const bool read = FromBytes(message, &request);
    std::lock_guard<std::mutex> lock(mutex_);
    if (read) {
      interval_us_ = IntervalUs(request);
    } else {
      failure_ = MalformedRequestOutcome();
    }
  }
  void OnInputEnd() override {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = MalformedRequestOutcome();
  }
  void OnCancel() override {}

  RpcActivity activity() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return interval_us_ > 0 ? RpcActivity::kWatching : RpcActivity::kAwaitingClient;
  }
  bool wants_message() const override { return activity() == RpcActivity::kAwaitingClient; }
  RpcOutput Next() override {
    RpcOutput output;
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = MonotonicMicros();
    if (failure_.has_value()) {
      output.end = *failure_;
    } else if (interval_us_ > 0 && now >= due_us_) {
      output.message = ToBytes(meter_->Report());
      due_us_ = now + interval_us_ - kSlackUs;
    }
    return output;
  }

 private:
  const LoadMeter* const meter_;
  mutable std::mutex mutex_;
  int64_t interval_us_ = 0;  // set by the first valid message
  int64_t due_us_ = 0;       // when the next report may leave
  std::optional<RpcOutcome> failure_;
};

}  // namespace

ServerLoad ReadServerLoad(const ModelDirectory& models) {
  ServerLoad load;
  load.time_us = MonotonicMicros();
  load.cpu_seconds = ProcessCpuSeconds();
  load.resident_bytes = ResidentBytes();
  for (const std::shared_ptr<ServedModel>& model : models.models()) {
    const ModelMetrics::Totals totals = model->metrics()->totals();
    load.ended += static_cast<int64_t>(totals.succeeded + totals.failed);
    load.errors += static_cast<int64_t>(totals.errors);
    const int64_t waiting = model->admission().requests();
    load.waiting += waiting;
    const std::shared_ptr<ModelHost> host = model->view().host;
    if (host == nullptr) continue;
    const EngineCounters counters = EngineGroup::Sum(host->engine().states());
    load.running += counters.running;
    const int64_t places = host->model().limits().max_step_sequences * host->engines();
    load.utilization = std::max(
        load.utilization,
        Fraction(static_cast<double>(counters.running + waiting), static_cast<double>(places)));
    load.cache_usage =
        std::max(load.cache_usage, Fraction(static_cast<double>(counters.pages_used),
                                            static_cast<double>(counters.pages_total)));
  }
  return load;
}

OrcaLoadReport MakeLoadReport(std::span<const ServerLoad> samples, int cores,
                              int64_t memory_bytes) {
  OrcaLoadReport report;
  const ServerLoad &before = samples.front(), &now = samples.back();
  double utilizations = 0;
  for (const ServerLoad& sample : samples) utilizations += sample.utilization;
  const double seconds = static_cast<double>(now.time_us - before.time_us) * 1e-6;
  report.set_cpu_utilization(Fraction((now.cpu_seconds - before.cpu_seconds) / cores, seconds));
  report.set_mem_utilization(
      Fraction(static_cast<double>(now.resident_bytes), static_cast<double>(memory_bytes)));
  report.set_application_utilization(Fraction(utilizations, static_cast<double>(samples.size())));
  const auto rate = [seconds](int64_t from, int64_t to) {
    return Fraction(static_cast<double>(std::max<int64_t>(to - from, 0)), seconds);
  };
  report.set_rps_fractional(rate(before.ended, now.ended));
  report.set_eps(rate(before.errors, now.errors));
  auto& named = *report.mutable_named_metrics();
  named["kv_cache_usage_perc"] = now.cache_usage;
  named["num_requests_running"] = static_cast<double>(now.running);
  named["num_requests_waiting"] = static_cast<double>(now.waiting);
  return report;
}

std::optional<LoadHeader> MakeLoadHeader(const OrcaLoadReport& report, absl::string_view format) {
  static constexpr char kName[] = "endpoint-load-metrics";
  if (absl::EqualsIgnoreCase(format, "bin")) {
    return LoadHeader{"endpoint-load-metrics-bin", report.SerializeAsString()};
  }
  const std::map<std::string, double> named(report.named_metrics().begin(),
                                            report.named_metrics().end());  // in a fixed order
  const std::pair<const char*, double> values[] = {
      {"application_utilization", report.application_utilization()},
      {"cpu_utilization", report.cpu_utilization()},
      {"mem_utilization", report.mem_utilization()},
      {"rps_fractional", report.rps_fractional()},
      {"eps", report.eps()}};
  if (absl::EqualsIgnoreCase(format, "text")) {
    std::string text = "TEXT ";
    const char* separator = "";
    const auto add = [&](absl::string_view name, double value) {
      absl::StrAppend(&text, separator, name, "=", value);
      separator = ", ";
    };
    for (const auto& [name, value] : values) add(name, value);
    for (const auto& [name, value] : named) add(absl::StrCat("named_metrics.", name), value);
    return LoadHeader{kName, std::move(text)};
  }
  if (!absl::EqualsIgnoreCase(format, "json")) return std::nullopt;
  JsonValue json = JsonValue::Object();
  for (const auto& [name, value] : values) json[name] = value;
  JsonValue& metrics = json["named_metrics"] = JsonValue::Object();
  for (const auto& [name, value] : named) metrics[name] = value;
  return LoadHeader{kName, absl::StrCat("JSON ", JsonText(json))};
}

LoadMeter::LoadMeter(const ModelDirectory* models)
    : models_(models),
      cores_(AvailableCores()),
      memory_bytes_(ReadProcessMemory().resident.limit.bytes) {
  Tick();
}

void LoadMeter::Tick() {
  const ServerLoad load = ReadServerLoad(*models_);
  std::lock_guard<std::mutex> lock(mutex_);
  samples_.push_back(load);
  if (samples_.size() > kWindow + 1) samples_.erase(samples_.begin());
  latest_ = std::make_shared<const OrcaLoadReport>(MakeLoadReport(samples_, cores_, memory_bytes_));
}

OrcaLoadReport LoadMeter::Report() const { return *latest(); }

LoadMeter::SharedReport LoadMeter::latest() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return latest_;
}

std::vector<Method> LoadReportMethods(const LoadMeter* meter) {
  Method method;
  method.path = absl::StrCat("/", kLoadReportService, "/StreamCoreMetrics");
  method.long_lived = true;
  method.make = [meter](std::shared_ptr<Rpc>) { return std::make_shared<LoadReportCall>(meter); };
  return {method};
}

}  // namespace quintet
