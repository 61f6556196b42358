#include "tools/load/flags.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "tools/conditions.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"
#include "tools/interrupt.h"

namespace quintet {
namespace {

constexpr size_t kMaxPrompts = 1 << 20;

absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  std::ifstream file(path);
  if (!file.is_open()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompts: cannot read ", path, ": ", std::strerror(errno)));
  }
  std::vector<std::string> lines;
  for (std::string line; lines.size() < kMaxPrompts && std::getline(file, line);) {
    if (!line.empty()) lines.push_back(std::move(line));
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompts: expected at least one non-empty line in ", path));
  }
  return lines;
}

void AddShapeFlags(CLI::App* command, LoadFlags* flags) {
  FlagGroup requests(command, "Requests");
  LoadShape* shape = &flags->shape;
  requests.Add("--prompts", &flags->prompts_file, "FILE",
               "File of prompts, one per line, sent in order; empty = random token ids.");
  requests.Add("--input-tokens", &flags->input_tokens, "LOW:HIGH",
               "Length of random inputs: N, or LOW:HIGH for a uniform distribution.");
  requests.Add("--output-tokens", &flags->output_tokens, "LOW:HIGH",
               "Exact number of new tokens per request: N, or LOW:HIGH for a uniform "
               "distribution; empty = until the model ends the sequence.");
  requests.Add("--shared-prompts", &shape->distinct_prompts, "PROMPTS",
               "Number of distinct prompts, chosen uniformly; 0 = every request has its own.",
               InRange(int64_t{0}, int64_t{1} << 30));
  requests.Add("--beam-share", &shape->beam_share, "FRACTION",
               "Fraction of requests that use beam search. Range [0, 1].", InRange(0.0, 1.0));
  requests.Add("--num-beams", &shape->num_beams, "BEAMS",
               "Number of beams of requests that use beam search. Range [2, 32].", InRange(2, 32));
  requests.AddSwitch("--unary", &flags->unary, "Send unary calls instead of streaming calls.");
}

void AddPacingFlags(CLI::App* command, LoadFlags* flags) {
  FlagGroup arrivals(command, "Arrivals");
  constexpr int64_t kMany = int64_t{1} << 40;
  Pacing* pacing = &flags->pacing;
  arrivals.Add("--request-rate", &flags->shape.request_rate, "REQUESTS/S",
               "Open loop: requests per second, whatever is in flight.", InRange(0.0, 1e6));
  arrivals.Add("--burstiness", &flags->shape.burstiness, "SHAPE",
               "Arrival burstiness (open loop): 1 = Poisson, <1 = bursty, >1 = regular. Range "
               "[0.01, 1000].",
               InRange(0.01, 1000.0));
  arrivals.Add("--concurrency", &pacing->concurrency, "REQUESTS",
               "Closed loop: number of requests in flight at any time; 0 = open loop.",
               InRange(int64_t{0}, int64_t{100000}));
  arrivals.Add("--static-batch", &pacing->static_batch, "REQUESTS",
               "Static batching (open loop): hold requests until the previous batch has ended, "
               "then send up to this many together; 0 = off.",
               InRange(int64_t{0}, int64_t{100000}));
  arrivals.AddSwitch("--pad-static-batch", &pacing->padded,
                     "Pad the random inputs and the outputs of a static batch to the longest.");
  arrivals.Add("--warmup", &pacing->warmup, "REQUESTS",
               "Number of requests at the start that are not measured.",
               InRange(int64_t{0}, kMany));
  arrivals.Add("--requests", &pacing->requests, "REQUESTS",
               "Number of measured requests; 0 = limited by --duration only.",
               InRange(int64_t{0}, kMany));
  arrivals.Add("--duration", &pacing->duration_s, "SECONDS",
               "Time during which measured requests are sent; 0 = limited by --requests only.",
               InRange(0.0, 1e6));
  arrivals.Add("--seed", &flags->shape.seed, "INTEGER",
               "Random seed for arrival times, prompts and lengths.", NumberOf<uint64_t>());
}

nlohmann::ordered_json LoadConfiguration(const LoadFlags& flags) {
  const LoadShape& shape = flags.shape;
  const Pacing& pacing = flags.pacing;
  return {{"request_rate", shape.request_rate},
          {"burstiness", shape.burstiness},
          {"concurrency", pacing.concurrency},
          {"static_batch", pacing.static_batch},
          {"pad_static_batch", pacing.padded},
          {"warmup", pacing.warmup},
          {"requests", pacing.requests},
          {"duration_s", pacing.duration_s},
          {"seed", shape.seed},
          {"prompts", shape.lines.size()},
          {"input_tokens", shape.lines.empty() ? flags.input_tokens : ""},
          {"output_tokens", flags.output_tokens},
          {"shared_prompts", shape.distinct_prompts},
          {"beam_share", shape.beam_share},
          {"num_beams", shape.num_beams},
          {"adapters", shape.adapters.size()},
          {"stream", !flags.unary},
          {"goodput", flags.goodput}};
}

// Returns INVALID_ARGUMENT unless the file `path` can be written, or is empty (not wanted). Creates
// the file; the contents of an existing one stay.
absl::Status CheckWritable(const char* flag, const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app).good()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": cannot write ", path, ": ", std::strerror(errno)));
}

// Writes `text` to the file `path`. Returns an exit code.
int WriteTrace(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  if (file.good()) return kExitDone;
  return Fail(kExitFailed, absl::UnavailableError(absl::StrCat("--record: cannot write ", path,
                                                               ": ", std::strerror(errno))));
}

}  // namespace

void AddLoadFlags(CLI::App* command, LoadFlags* flags) {
  AddShapeFlags(command, flags);
  AddPacingFlags(command, flags);
  FlagGroup report(command, "Report");
  report
      .Add("--goodput", &flags->goodput, "NAME:MS ...",
           "Latency limits that a request must meet to count as goodput, in ms: any of "
           "ttft:75 tpot:20 e2e:500.")
      ->delimiter(',');
  report.Add("--output", &flags->output, "FORMAT", "Format of the report: text (a table) or json.",
             CLI::IsMember({"text", "json"}));
  report.Add("--json", &flags->json_file, "FILE", "Also write the report as JSON to this file.");
  report.Add(
      "--record", &flags->record_file, "FILE",
      "Also write the arrival, the lengths and the latencies of each request that ended with "
      "OK to this file, one JSON object a line; tools/bench/fleet.py simulates such a trace.");
}

absl::Status ValidateLoad(LoadFlags* flags) {
  LoadShape& shape = flags->shape;
  Pacing& pacing = flags->pacing;
  if ((shape.request_rate > 0) == (pacing.concurrency > 0)) {
    return absl::InvalidArgumentError("expected exactly one of --request-rate or --concurrency");
  }
  if (pacing.static_batch > 0 && pacing.concurrency > 0) {
    return absl::InvalidArgumentError("--static-batch: needs --request-rate, got --concurrency");
  }
  if (pacing.padded && (pacing.static_batch == 0 || flags->output_tokens.empty())) {
    return absl::InvalidArgumentError(
        "--pad-static-batch: needs --static-batch and --output-tokens");
  }
  if (pacing.requests == 0 && pacing.duration_s == 0) {
    return absl::InvalidArgumentError("expected --requests or --duration: the run needs an end");
  }
  QT_ASSIGN_OR_RETURN(shape.input_tokens, ParseTokenRange("--input-tokens", flags->input_tokens));
  if (!flags->output_tokens.empty()) {
    QT_ASSIGN_OR_RETURN(shape.output_tokens,
                        ParseTokenRange("--output-tokens", flags->output_tokens));
  }
  if (!flags->prompts_file.empty()) {
    QT_ASSIGN_OR_RETURN(shape.lines, ReadPrompts(flags->prompts_file));
  }
  QT_RETURN_IF_ERROR(ParseGoodput(flags->goodput).status());
  QT_RETURN_IF_ERROR(CheckWritable("--json", flags->json_file));
  return CheckWritable("--record", flags->record_file);
}

int RunAndReport(const LoadFlags& flags, LoadTarget* target, nlohmann::ordered_json conditions,
                 nlohmann::ordered_json configuration) {
  const absl::StatusOr<GoodputLimits> limits = ParseGoodput(flags.goodput);
  if (!limits.ok()) return Fail(kExitUsage, limits.status());
  configuration.update(LoadConfiguration(flags));
  WatchForInterrupt();
  LoadPlan plan(flags.shape);
  const LoadRecord record = RunLoad(flags.pacing, &plan, target);
  const nlohmann::ordered_json summary = SummarizeLoad(record, *limits);
  if (flags.output == "text") {
    absl::PrintF("quintet %s (%s), %s, %d cores\n", conditions["version"].get<std::string>(),
                 conditions["commit"].get<std::string>(), conditions["cpu"].get<std::string>(),
                 conditions["cores"].get<int>());
    PrintLoad(summary);
  }
  int code = WriteReport({{"conditions", std::move(conditions)},
                          {"configuration", std::move(configuration)},
                          {"load", summary}},
                         flags.output, flags.json_file);
  if (!flags.record_file.empty()) {
    code = std::max(code, WriteTrace(flags.record_file, TraceOfLoad(record)));
  }
  if (code != kExitDone) return code;
  if (record.interrupted) return kExitInterrupted;
  return summary["codes"].contains("OK") ? kExitDone : kExitRemote;
}

}  // namespace quintet
