// Report of a load run: a JSON object and a table printed from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/load/record.h"

namespace quintet {

// Limits on latency in milliseconds. A request counts as goodput if it stays within all of them:
// ttft_ms limits the time to the first token, tpot_ms the time per output token, e2e_ms the
// end-to-end time. For a request that did not stream tokens (beam search, unary calls), ttft_ms
// limits the end-to-end time and tpot_ms does not apply.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
};
// Parses limits such as {"ttft:75", "tpot:20"}. Returns INVALID_ARGUMENT if a name is unknown or
// repeated, or if a value is not a positive number.
absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits);

// Returns true if the request ended with OK and stayed within `limits`.
bool IsGood(const RequestOutcome& outcome, const GoodputLimits& limits);

// Quantile by nearest rank: the smallest value v such that at least `share` of the values are
// <= v. `sorted` must be ascending and not empty, 0 < share <= 1.
double Quantile(const std::vector<double>& sorted, double share);

// Returns statistics of `values`: {"count", "mean", "p50", "p90", "p95", "p99", "max"}; only
// "count" if there are none.
nlohmann::ordered_json Distribution(std::vector<double> values);

// Summarizes a run as a JSON object. It contains "codes" (the number of requests for each status
// code and ErrorInfo.reason, and latencies for each code), the rates in the measurement window, the
// latencies of the measured requests that ended with OK, and "goodput". Goodput describes the
// measured requests that ended with OK and stayed within `limits`: their number, their fraction of
// all measured requests, and their rate in requests per second. That rate counts only requests that
// ended in the window, so it never exceeds requests_per_s.
nlohmann::ordered_json SummarizeLoad(const LoadRecord& record, const GoodputLimits& limits);

// Returns the requests of a run that ended with OK, including those of the warm-up, as lines of
// JSON objects in the order of their scheduled arrivals: {"at_s", "input_tokens", "output_tokens",
// "num_beams", "measured", "ttft_ms", "e2e_ms"}. at_s counts from the first of these arrivals;
// ttft_ms is absent from a request that did not stream. tools/bench/fleet.py simulates such a
// trace.
std::string TraceOfLoad(const LoadRecord& record);

void PrintLoad(const nlohmann::ordered_json& summary);

}  // namespace quintet
