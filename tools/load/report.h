// A load run in figures: a JSON object and a table made from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/load/record.h"

namespace quintet {

// Upper limits that a good answer keeps, in milliseconds. A request that streamed nothing before
// its end (beams, unary calls) is held to ttft_ms by its end, and to no pace.
struct GoodputLimits {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
};
// {"ttft:75", "tpot:20"}. INVALID_ARGUMENT: unknown name, named twice, not a positive number.
absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits);

// Answered OK within the limits.
bool IsGood(const RequestOutcome& outcome, const GoodputLimits& limits);

// The smallest value that at least `share` of the values do not exceed (nearest rank). `sorted` is
// ascending and not empty, 0 < share <= 1.
double Quantile(const std::vector<double>& sorted, double share);

// {"count", "mean", "p50", "p90", "p95", "p99", "max"}; of no values only the count.
nlohmann::ordered_json Distribution(std::vector<double> values);

// "codes" (by status code and ErrorInfo.reason, with latencies of each code), rates inside the
// window, latencies of measured requests that were answered OK, and "goodput": how many of these
// kept the limits, their share of the measured ones, and the rate of those that ended inside the
// window, which is never above the rate of all.
nlohmann::ordered_json SummarizeLoad(const LoadRecord& record, const GoodputLimits& limits);

void PrintLoad(const nlohmann::ordered_json& summary);

}  // namespace quintet
