#include "tools/load/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace quintet {
namespace {

using Json = nlohmann::ordered_json;

struct Latencies {
  std::vector<double> ttft_ms, tpot_ms, e2e_ms, late_ms;
};

Json ByCode(const LoadRecord& record) {
  struct Group {
    std::vector<double> ms;
    int64_t retry_info = 0;
    std::map<std::string, int64_t> reasons;
  };
  std::map<std::string, Group> groups;
  for (const RequestOutcome& outcome : record.outcomes) {
    if (!outcome.measured) continue;
    Group& group = groups[absl::StatusCodeToString(outcome.code)];
    // The latencies that are reported for each status code count from the time of sending, not from
    // the scheduled time: the server is not responsible for a client that sends late.
    group.ms.push_back(static_cast<double>(outcome.done_us - outcome.sent_us) / 1e3);
    group.retry_info += outcome.retry_info ? 1 : 0;
    if (!outcome.reason.empty()) ++group.reasons[outcome.reason];
  }
  Json codes = Json::object();
  for (auto& [code, group] : groups) {
    codes[code] = {{"count", group.ms.size()}};
    if (code == "OK") continue;
    codes[code]["reasons"] = group.reasons;
    codes[code]["with_retry_info"] = group.retry_info;
    codes[code]["answered_ms"] = Distribution(std::move(group.ms));
  }
  return codes;
}

void PrintDistribution(const char* name, const Json& values) {
  if (values["count"] == 0) {
    absl::PrintF("%-8s %8d\n", name, 0);
    return;
  }
  absl::PrintF("%-8s %8d", name, values["count"].get<int64_t>());
  for (const char* column : {"mean", "p50", "p90", "p95", "p99", "max"}) {
    absl::PrintF(" %10.2f", values[column].get<double>());
  }
  absl::PrintF("\n");
}

}  // namespace

absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits) {
  GoodputLimits parsed;
  const std::map<std::string, std::optional<double>*> known = {
      {"ttft", &parsed.ttft_ms}, {"tpot", &parsed.tpot_ms}, {"e2e", &parsed.e2e_ms}};
  for (const std::string& limit : limits) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(limit, absl::MaxSplits(':', 1));
    const auto found = known.find(parts.first);
    double ms = 0;
    const bool number = absl::SimpleAtod(parts.second, &ms) && std::isfinite(ms) && ms > 0;
    if (found == known.end() || !number || found->second->has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--goodput: expected ttft:MS, tpot:MS or e2e:MS, each at most once, got ", limit));
    }
    *found->second = ms;
  }
  return parsed;
}

bool IsGood(const RequestOutcome& outcome, const GoodputLimits& limits) {
  if (!outcome.ok()) return false;
  const double first_ms = outcome.streamed() ? outcome.ttft_ms() : outcome.e2e_ms();
  if (limits.ttft_ms && first_ms > *limits.ttft_ms) return false;
  if (limits.tpot_ms && outcome.paced() && outcome.tpot_ms() > *limits.tpot_ms) return false;
  return !limits.e2e_ms || outcome.e2e_ms() <= *limits.e2e_ms;
}

double Quantile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()) - 1e-9);
  return sorted[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

Json Distribution(std::vector<double> values) {
  Json distribution = {{"count", values.size()}};
  if (values.empty()) return distribution;
  std::sort(values.begin(), values.end());
  distribution["mean"] =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  distribution["p50"] = Quantile(values, 0.50);
  distribution["p90"] = Quantile(values, 0.90);
  distribution["p95"] = Quantile(values, 0.95);
  distribution["p99"] = Quantile(values, 0.99);
  distribution["max"] = values.back();
  return distribution;
}

Json SummarizeLoad(const LoadRecord& record, const GoodputLimits& limits) {
  Latencies latencies;
  int64_t measured = 0, good = 0, good_in_window = 0;
  for (const RequestOutcome& outcome : record.outcomes) {
    if (!outcome.measured) continue;
    ++measured;
    latencies.late_ms.push_back(outcome.late_ms());
    if (!outcome.ok()) continue;
    if (IsGood(outcome, limits)) {
      ++good;
      if (outcome.done_us <= record.end_us) ++good_in_window;
    }
    latencies.e2e_ms.push_back(outcome.e2e_ms());
    if (outcome.streamed()) latencies.ttft_ms.push_back(outcome.ttft_ms());
    if (outcome.paced()) latencies.tpot_ms.push_back(outcome.tpot_ms());
  }
  const double seconds = std::max(record.window_s(), 1e-6);
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  return {
      {"sent", record.sent},
      {"answered", record.outcomes.size()},
      {"measured", measured},
      {"interrupted", record.interrupted},
      {"codes", ByCode(record)},
      {"window_s", record.window_s()},
      {"requests_per_s", rate(record.window_requests)},
      {"input_tokens_per_s", rate(record.window_input_tokens)},
      {"output_tokens_per_s", rate(record.window_output_tokens)},
      {"goodput",
       {{"requests", good},
        {"share", measured == 0 ? 0.0 : static_cast<double>(good) / static_cast<double>(measured)},
        {"requests_per_s", rate(good_in_window)}}},
      {"ttft_ms", Distribution(std::move(latencies.ttft_ms))},
      {"tpot_ms", Distribution(std::move(latencies.tpot_ms))},
      {"itl_ms", Distribution(record.gaps_ms)},
      {"e2e_ms", Distribution(std::move(latencies.e2e_ms))},
      {"late_ms", Distribution(std::move(latencies.late_ms))}};
}

std::string TraceOfLoad(const LoadRecord& record) {
  std::vector<const RequestOutcome*> arrivals;
  for (const RequestOutcome& outcome : record.outcomes) {
    if (outcome.ok()) arrivals.push_back(&outcome);
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const RequestOutcome* a, const RequestOutcome* b) {
                     return a->scheduled_us < b->scheduled_us;
                   });
  std::string lines;
  for (const RequestOutcome* outcome : arrivals) {
    const int64_t at_us = outcome->scheduled_us - arrivals.front()->scheduled_us;
    Json line = {{"at_s", static_cast<double>(at_us) / 1e6},
                 {"input_tokens", outcome->input_tokens},
                 {"output_tokens", outcome->output_tokens},
                 {"num_beams", outcome->num_beams},
                 {"measured", outcome->measured}};
    if (outcome->streamed()) line["ttft_ms"] = outcome->ttft_ms();
    line["e2e_ms"] = outcome->e2e_ms();
    absl::StrAppend(&lines, line.dump(), "\n");
  }
  return lines;
}

void PrintLoad(const Json& summary) {
  absl::PrintF("%d requests sent, %d answered, %d measured in %.1f s:",
               summary["sent"].get<int64_t>(), summary["answered"].get<int64_t>(),
               summary["measured"].get<int64_t>(), summary["window_s"].get<double>());
  for (const auto& [code, group] : summary["codes"].items()) {
    absl::PrintF(" %s %d", code, group["count"].get<int64_t>());
  }
  absl::PrintF("\n%.1f requests/s, %.1f input tokens/s, %.1f output tokens/s\n",
               summary["requests_per_s"].get<double>(), summary["input_tokens_per_s"].get<double>(),
               summary["output_tokens_per_s"].get<double>());
  const Json& goodput = summary["goodput"];
  absl::PrintF("goodput %.1f requests/s, %.1f %% of the requests\n",
               goodput["requests_per_s"].get<double>(), 100 * goodput["share"].get<double>());
  absl::PrintF("%-8s %8s %10s %10s %10s %10s %10s %10s\n", "ms", "count", "mean", "p50", "p90",
               "p95", "p99", "max");
  PrintDistribution("TTFT", summary["ttft_ms"]);
  PrintDistribution("TPOT", summary["tpot_ms"]);
  PrintDistribution("ITL", summary["itl_ms"]);
  PrintDistribution("E2E", summary["e2e_ms"]);
  PrintDistribution("late", summary["late_ms"]);
}

}  // namespace quintet
