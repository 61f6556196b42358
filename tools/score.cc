// quintet score: computes the log-likelihood of given targets.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "tools/flag_group.h"
#include "tools/flag_values.h"
#include "tools/line_format.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

struct ScoreFlags {
  ModelFlags model;
  LineFlags lines;
  bool add_eos = true;
  uint32_t top_logprobs = 0;
  int64_t sliding_window = 0;
  bool prefix_lm = false;
};

std::string FormatScores(const Result& result) {
  std::string out;
  for (const ScoredTarget& target : result.targets) {
    absl::StrAppend(&out, out.empty() ? "" : "\t", absl::StrFormat("%.6f", target.total));
  }
  return out + "\n";
}

std::string FormatJson(int64_t number, const Result& result) {
  nlohmann::ordered_json json = {{"line", number}, {"targets", nlohmann::ordered_json::array()}};
  for (const ScoredTarget& target : result.targets) {
    nlohmann::ordered_json tokens = nlohmann::ordered_json::array();
    for (const TokenLogProb& token : target.tokens) tokens.push_back(JsonLogProb(token));
    json["targets"].push_back({{"logprob", target.total}, {"tokens", std::move(tokens)}});
  }
  json["usage"] = {{"input_tokens", result.input_tokens}, {"output_tokens", result.output_tokens}};
  return JsonLine(json);
}

// Tokenizes a text target and appends its ids to *targets. If flags.add_eos is set, the tokenizer
// adds the end-of-sequence id for T5 models; it adds nothing for GPT-2.
absl::Status AddTextTarget(const Session& session, const ScoreFlags& flags, absl::string_view text,
                           std::vector<std::vector<int32_t>>* targets) {
  QT_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeText(session, text, flags.add_eos));
  targets->push_back(std::move(ids));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> TargetsFromJson(const Session& session,
                                                                  const ScoreFlags& flags,
                                                                  const nlohmann::json& fields) {
  const auto list = fields.find("targets");
  if (list == fields.end() || !list->is_array()) {
    return absl::InvalidArgumentError(
        "targets: expected an array of strings or of arrays of token ids");
  }
  std::vector<std::vector<int32_t>> targets;
  for (const nlohmann::json& target : *list) {
    if (target.is_string()) {
      const std::string& text = target.get_ref<const std::string&>();
      QT_RETURN_IF_ERROR(AddTextTarget(session, flags, text, &targets));
      continue;
    }
    QT_ASSIGN_OR_RETURN(std::vector<int32_t> ids, IdsFromJson(target, "targets"));
    targets.push_back(std::move(ids));
  }
  return targets;
}

absl::StatusOr<LineJob> MakeJob(const Session& session, const ScoreFlags& flags, int64_t number,
                                const std::string& line) {
  LineJob job;
  job.request.kind = RequestKind::kScore;
  std::vector<std::string> columns = {line};
  const bool is_text = flags.lines.input == "text";
  if (is_text) columns = absl::StrSplit(line, '\t');
  QT_ASSIGN_OR_RETURN(LineInput input,
                      ReadInput(session, flags.lines, columns.front(), {"targets"}));
  if (is_text) {
    for (size_t i = 1; i < columns.size(); ++i) {
      QT_RETURN_IF_ERROR(AddTextTarget(session, flags, columns[i], &job.request.targets));
    }
  } else {
    QT_ASSIGN_OR_RETURN(job.request.targets, TargetsFromJson(session, flags, input.fields));
  }
  if (job.request.targets.empty() || job.request.targets.size() > kMaxTargets) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", kMaxTargets, " targets, got ", job.request.targets.size(),
                     is_text ? " (input and targets are separated by tabs)" : ""));
  }
  job.request.input = std::move(input.ids);
  job.request.top_logprobs = static_cast<int32_t>(flags.top_logprobs);
  job.request.sliding_window = flags.sliding_window;
  job.request.prefix_lm = flags.prefix_lm;
  job.format = [number, json = flags.lines.output == "json"](const Result& result,
                                                             std::string* out) {
    *out += json ? FormatJson(number, result) : FormatScores(result);
  };
  return job;
}

int Run(const ScoreFlags& flags) {
  if (flags.top_logprobs > 0 && flags.lines.output != "json") {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                "--top-logprobs: text output does not show it; use --output json"));
  }
  int exit_code = kExitDone;
  const SessionNeeds needs = NeedsOf(RequestKind::kScore, flags.lines);
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  // Reject flags with which every line would fail, so that the command fails once, with a usage
  // error.
  Request sight;
  sight.sliding_window = flags.sliding_window;
  sight.prefix_lm = flags.prefix_lm;
  if (absl::Status status = CheckAttentionScope(sight, session->config); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  return RunLines(*session, flags.lines, [&](int64_t number, const std::string& line) {
    return MakeJob(*session, flags, number, line);
  });
}

}  // namespace

void AddScoreCommand(CommandLine& line) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = line.AddCommand(
      {"score", "Log-likelihood of given targets for each line of standard input.",
       "printf 'phoneme\\tF OW1 N IY2 M\\n' | quintet score --model deploy/models/g2p",
       "A line is INPUT<TAB>TARGET[<TAB>TARGET...], or with --input json {\"text\": ..., "
       "\"targets\": [...]}.\n"
       "Text output: the total log-probability (natural logarithm) of each target, separated by "
       "tabs. A failed line\n"
       "produces an empty line (--output json: an object with \"error\"), and the exit code is 1."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddLineFlags(command, &flags->lines, {"text", "json"});
  FlagGroup scoring(command, "Scoring");
  scoring
      .Add("--target-special-tokens", &flags->add_eos, "BOOL",
           "Also add special tokens to text targets (T5: the end-of-sequence id).")
      ->default_str("true");
  scoring.Add("--top-logprobs", &flags->top_logprobs, "TOKENS",
              "Return the K most likely alternatives of each token (--output json). Range "
              "[0, 20].",
              InRange(0, 20));
  scoring.Add("--sliding-window", &flags->sliding_window, "TOKENS",
              "Attention window in tokens, including the current one; 0 = unlimited. GPT-2 "
              "only.",
              InRange(int64_t{0}, int64_t{1} << 31));
  scoring.AddSwitch(
      "--prefix-lm", &flags->prefix_lm,
      "Prefix-LM attention: bidirectional within the input, causal in the targets. GPT-2 "
      "only.");
}

}  // namespace quintet
