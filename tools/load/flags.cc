#include "tools/load/flags.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/conditions.h"
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
    return absl::InvalidArgumentError(absl::StrCat("--prompts: no lines in ", path));
  }
  return lines;
}

void AddShapeFlags(CLI::App* command, LoadFlags* flags) {
  constexpr char kGroup[] = "Requests";
  LoadShape* shape = &flags->shape;
  command
      ->add_option("--prompts", flags->prompts_file,
                   "Lines of text to send in turn; empty: random token ids.")
      ->type_name("FILE")
      ->group(kGroup);
  command->add_option("--input-tokens", flags->input_tokens, "Length of random inputs.")
      ->type_name("LOW:HIGH")
      ->group(kGroup);
  command
      ->add_option("--output-tokens", flags->output_tokens,
                   "New tokens, exactly, of each request; empty: the model ends them.")
      ->type_name("LOW:HIGH")
      ->group(kGroup);
  command
      ->add_option("--shared-prompts", shape->distinct_prompts,
                   "Requests share so many prompts; 0: one for each.")
      ->check(InRange(int64_t{0}, int64_t{1} << 30))
      ->type_name("PROMPTS")
      ->group(kGroup);
  command->add_option("--beam-share", shape->beam_share, "Share of the requests with beams.")
      ->check(InRange(0.0, 1.0))
      ->type_name("0..1")
      ->group(kGroup);
  command->add_option("--num-beams", shape->num_beams, "Beams of those.")
      ->check(InRange(2, 32))
      ->type_name("BEAMS")
      ->group(kGroup);
  command->add_flag("--unary", flags->unary, "Whole answers instead of streams.")->group(kGroup);
}

void AddPacingFlags(CLI::App* command, LoadFlags* flags) {
  constexpr char kGroup[] = "Pace";
  constexpr int64_t kMany = int64_t{1} << 40;
  Pacing* pacing = &flags->pacing;
  command
      ->add_option("--request-rate", flags->shape.request_rate,
                   "Open loop: requests that fall due in a second.")
      ->check(InRange(0.0, 1e6))
      ->type_name("REQUESTS/S")
      ->group(kGroup);
  command
      ->add_option("--burstiness", flags->shape.burstiness,
                   "Of the open loop: 1 is a Poisson process, less comes in bursts, more is "
                   "steadier.")
      ->check(InRange(0.01, 1000.0))
      ->type_name("SHAPE")
      ->group(kGroup);
  command
      ->add_option("--concurrency", pacing->concurrency,
                   "Closed loop instead: so many requests at any time.")
      ->check(InRange(int64_t{0}, int64_t{100000}))
      ->type_name("REQUESTS")
      ->group(kGroup);
  command
      ->add_option("--static-batch", pacing->static_batch,
                   "Hold back what falls due until the last batch has ended, then send up to so "
                   "many together; 0: send at once.")
      ->check(InRange(int64_t{0}, int64_t{100000}))
      ->type_name("REQUESTS")
      ->group(kGroup);
  command
      ->add_flag("--pad-static-batch", pacing->padded,
                 "Pad random inputs and new tokens of such a batch to its longest.")
      ->group(kGroup);
  command->add_option("--warmup", pacing->warmup, "First requests, which are not measured.")
      ->check(InRange(int64_t{0}, kMany))
      ->type_name("REQUESTS")
      ->group(kGroup);
  command->add_option("--requests", pacing->requests, "Measured requests; 0: as the time allows.")
      ->check(InRange(int64_t{0}, kMany))
      ->type_name("REQUESTS")
      ->group(kGroup);
  command->add_option("--duration", pacing->duration_s, "How long measured requests are sent.")
      ->check(InRange(0.0, 1e6))
      ->type_name("SECONDS")
      ->group(kGroup);
  command->add_option("--seed", flags->shape.seed, "Of times, prompts and lengths.")
      ->check(NumberOf<uint64_t>())
      ->type_name("INTEGER")
      ->group(kGroup);
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
          {"stream", !flags.unary},
          {"goodput", flags.goodput}};
}

}  // namespace

void AddLoadFlags(CLI::App* command, LoadFlags* flags) {
  AddShapeFlags(command, flags);
  AddPacingFlags(command, flags);
  constexpr char kGroup[] = "Report";
  command
      ->add_option("--goodput", flags->goodput,
                   "Limits of a good answer in ms: ttft:75 tpot:20 e2e:500.")
      ->delimiter(',')
      ->type_name("NAME:MS ...")
      ->group(kGroup);
  command->add_option("--output", flags->output, "What is printed: a table, or json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group(kGroup);
  command->add_option("--json", flags->json_file, "Also write the report as JSON to this file.")
      ->type_name("FILE")
      ->group(kGroup);
}

absl::Status SettleLoad(LoadFlags* flags) {
  LoadShape& shape = flags->shape;
  Pacing& pacing = flags->pacing;
  if ((shape.request_rate > 0) == (pacing.concurrency > 0)) {
    return absl::InvalidArgumentError("give --request-rate or --concurrency, one of them");
  }
  if (pacing.static_batch > 0 && pacing.concurrency > 0) {
    return absl::InvalidArgumentError("--static-batch needs --request-rate");
  }
  if (pacing.padded && (pacing.static_batch == 0 || flags->output_tokens.empty())) {
    return absl::InvalidArgumentError(
        "--pad-static-batch needs --static-batch and --output-tokens");
  }
  if (pacing.requests == 0 && pacing.duration_s == 0) {
    return absl::InvalidArgumentError("give --requests or --duration: the run needs an end");
  }
  absl::StatusOr<TokenRange> input = ParseTokenRange("--input-tokens", flags->input_tokens);
  if (!input.ok()) return input.status();
  shape.input_tokens = *input;
  if (!flags->output_tokens.empty()) {
    absl::StatusOr<TokenRange> output = ParseTokenRange("--output-tokens", flags->output_tokens);
    if (!output.ok()) return output.status();
    shape.output_tokens = *output;
  }
  if (!flags->prompts_file.empty()) {
    absl::StatusOr<std::vector<std::string>> lines = ReadPrompts(flags->prompts_file);
    if (!lines.ok()) return lines.status();
    shape.lines = *std::move(lines);
  }
  return ParseGoodput(flags->goodput).status();
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
  const int code = WriteReport({{"conditions", std::move(conditions)},
                                {"configuration", std::move(configuration)},
                                {"load", summary}},
                               flags.output, flags.json_file);
  if (code != kExitDone) return code;
  if (record.interrupted) return kExitInterrupted;
  return summary["codes"].contains("OK") ? kExitDone : kExitRemote;
}

}  // namespace quintet
