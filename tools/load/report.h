// Report of a load run: a JSON object and a table printed from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/load/record.h"

namespace quintet {

// Latency limits in milliseconds that a request must keep to count as goodput: time to first token,
// time per output token, end-to-end time. If a request did not stream tokens (beam search, unary
// calls), ttft_ms limits its end-to-end time and tpot_ms does not apply.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
};
// Parses limits such as {"ttft:75", "tpot:20"}. INVALID_ARGUMENT: unknown or repeated name, or not
// a positive number.
absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits);

// Whether the request ended with OK and kept the limits.
bool IsGood(const RequestOutcome& outcome, const GoodputLimits& limits);

// Quantile by nearest rank: the smallest value v such that at least `share` of the values are
// <= v. `sorted` must be ascending and not empty, 0 < share <= 1.
double Quantile(const std::vector<double>& sorted, double share);

// Returns statistics of `values`: {"count", "mean", "p50", "p90", "p95", "p99", "max"}; only
// "count" if there are none.
nlohmann::ordered_json Distribution(std::vector<double> values);

// Summarizes a run: "codes" (counts by status code and ErrorInfo.reason, latencies by code), rates
// in the measurement window, latencies of measured requests that ended with OK, and "goodput".
// Goodput is the number of these requests that kept `limits`, their fraction of all measured
// requests, and their rate in requests per second, counting only those that ended in the window (so
// never more than requests_per_s).
nlohmann::ordered_json SummarizeLoad(const LoadRecord& record, const GoodputLimits& limits);

void PrintLoad(const nlohmann::ordered_json& summary);

}  // namespace quintet
