// Report of a load run: a JSON object and a table printed from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/load/record.h"

namespace quintet {

// Latency limits for goodput, in milliseconds. For a request without streamed tokens (beam search,
// unary calls) ttft_ms limits the end-to-end time and tpot_ms does not apply.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
};
// Parses {"ttft:75", "tpot:20"}. INVALID_ARGUMENT: unknown or repeated name, not a positive number.
absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits);

// Whether the request ended OK within the limits.
bool IsGood(const RequestOutcome& outcome, const GoodputLimits& limits);

// Quantile by nearest rank: the smallest value v such that at least `share` of the values are
// <= v. `sorted` must be ascending and not empty, 0 < share <= 1.
double Quantile(const std::vector<double>& sorted, double share);

// Returns {"count", "mean", "p50", "p90", "p95", "p99", "max"}; only "count" if `values` is empty.
nlohmann::ordered_json Distribution(std::vector<double> values);

// Summarizes a run: "codes" (counts by status code and ErrorInfo.reason, latencies per code), rates
// in the measurement window, latencies of measured requests that ended OK, and "goodput": the
// number of these within the limits, their fraction of the measured requests, and the rate of those
// that ended in the window, which never exceeds requests_per_s.
nlohmann::ordered_json SummarizeLoad(const LoadRecord& record, const GoodputLimits& limits);

void PrintLoad(const nlohmann::ordered_json& summary);

}  // namespace quintet
