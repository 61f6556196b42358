// Reports the load of this server to balancers that weight servers by it: the service
// xds.service.orca.v3.OpenRcaService streams reports, for example to gRPC's weighted_round_robin,
// and responses carry one if the request asks for it, as Envoy and gateways of inference servers
// do. The protocol is ORCA (Open Request Cost Aggregation): gRFC A51,
// https://github.com/grpc/proposal.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/methods.h"
#include "server/model_directory.h"
#include "xds/data/orca/v3/orca_load_report.pb.h"

namespace quintet {

inline constexpr char kLoadReportService[] = "xds.service.orca.v3.OpenRcaService";

// The load of a server at one time: totals since its start, and its current requests and memory.
struct ServerLoad {
  int64_t time_us = 0;     // of the sample, by MonotonicMicros
  double cpu_seconds = 0;  // CPU time of the process
  // Requests of all models that have ended, for whatever reason, and those of them that ended with
  // FinishReason::kError. They fall when a model is removed.
  int64_t ended = 0, errors = 0;
  int64_t running = 0, waiting = 0;  // requests of all models
  // The largest values of a model: its running and waiting requests divided by the sequences that
  // it can run at once, which may exceed 1, and the used fraction of its KV cache pages.
  double utilization = 0, cache_usage = 0;
  int64_t resident_bytes = 0;
};
ServerLoad ReadServerLoad(const ModelDirectory& models);

// Returns the report of a server with these samples of its load, at least one, the oldest first.
// Rates and the CPU's utilization are means over the time between the first and the last, the
// application's utilization is the mean of all, everything else is that of the last. `cores` and
// `memory_bytes` are what the process may use, at least 1.
xds::data::orca::v3::OrcaLoadReport MakeLoadReport(std::span<const ServerLoad> samples, int cores,
                                                   int64_t memory_bytes);

// The header of a request that asks for a report in the response, and its value: text, json or bin.
inline constexpr char kLoadFormatHeader[] = "endpoint-load-metrics-format";

// A report as a header of a response.
struct LoadHeader {
  const char* name;
  std::string value;  // bin: the serialized report, which HTTP headers carry in base64
};
// Returns the header for a value of kLoadFormatHeader, whose case is ignored; nullopt for other
// values. Throws std::bad_alloc.
std::optional<LoadHeader> MakeLoadHeader(const xds::data::orca::v3::OrcaLoadReport& report,
                                         absl::string_view format);

// Samples the load of this server. Thread-safe.
class LoadMeter {
 public:
  // `models` must outlive the meter.
  explicit LoadMeter(const ModelDirectory* models);
  // Takes a sample. Called every second.
  void Tick();
  // Returns the report of the last samples, which span kWindow ticks.
  xds::data::orca::v3::OrcaLoadReport Report() const;
  // MakeLoadHeader of Report().
  std::optional<LoadHeader> Header(absl::string_view format) const {
    return MakeLoadHeader(*latest(), format);
  }
  static constexpr size_t kWindow = 10;

 private:
  using SharedReport = std::shared_ptr<const xds::data::orca::v3::OrcaLoadReport>;
  SharedReport latest() const;

  const ModelDirectory* const models_;
  const int cores_;
  const int64_t memory_bytes_;
  mutable std::mutex mutex_;
  std::vector<ServerLoad> samples_;  // 1 to kWindow + 1, the oldest first
  SharedReport latest_;              // made of samples_
};

// Returns the method of the service. `meter` must outlive the handlers. A report that is due leaves
// at the next call of Rpc::Check, which the server makes every second.
std::vector<Method> LoadReportMethods(const LoadMeter* meter);

}  // namespace quintet
