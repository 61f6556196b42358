// quintet generate: generates text and writes one output line for each input line, in the order of
// the input.
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tools/decoding_flags.h"
#include "tools/decoding_json.h"
#include "tools/flag_group.h"
#include "tools/line_format.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

struct GenerateFlags {
  ModelFlags model;
  LineFlags lines;
  DecodingFlags decoding;
  bool skip_special_tokens = true;
};

std::string FormatText(const Result& result) {
  std::string out;
  for (const GeneratedSequence& sequence : result.sequences) {
    if (!out.empty() || &sequence != &result.sequences.front()) out += '\t';
    out += EscapeLine(sequence.text);
  }
  return out + "\n";
}

nlohmann::ordered_json JsonSequence(const GeneratedSequence& sequence,
                                    const DecodingOptions& options) {
  nlohmann::ordered_json json = {{"text", sequence.text},
                                 {"token_ids", sequence.token_ids},
                                 {"finish_reason", FinishReasonName(sequence.finish_reason)}};
  if (!sequence.matched_stop.empty()) json["matched_stop"] = sequence.matched_stop;
  if (options.return_scores) json["score"] = JsonFloat(sequence.score);
  if (options.logprobs || options.top_logprobs > 0) {
    json["logprobs"] = nlohmann::ordered_json::array();
    for (const TokenLogProb& token : sequence.logprobs)
      json["logprobs"].push_back(JsonLogProb(token));
  }
  return json;
}

std::string FormatJson(int64_t number, const Result& result, const DecodingOptions& options) {
  nlohmann::ordered_json json = {{"line", number}, {"sequences", nlohmann::ordered_json::array()}};
  for (const GeneratedSequence& sequence : result.sequences) {
    json["sequences"].push_back(JsonSequence(sequence, options));
  }
  json["usage"] = {{"input_tokens", result.input_tokens},
                   {"prefix_tokens", result.prefix_tokens},
                   {"output_tokens", result.output_tokens}};
  if (options.do_sample) json["seed"] = result.seed;
  return JsonLine(json);
}

void Detokenize(const Session& session, bool skip_special_tokens, Result* result) {
  if (session.tokenizer == nullptr) return;
  for (GeneratedSequence& sequence : result->sequences) {
    sequence.text = session.tokenizer->Decode(sequence.token_ids, skip_special_tokens);
  }
}

// Returns an error if `decoding` requests log-probabilities or scores and `output` is not "json":
// text output does not show them. The error message puts `dashes` before the name of the option:
// "--" for flags, "" for JSON fields.
absl::Status CheckShown(const DecodingRequest& decoding, const std::string& output,
                        const char* dashes) {
  if (output == "json") return absl::OkStatus();
  const auto unseen = [&](const char* name) {
    return absl::InvalidArgumentError(
        absl::StrCat(dashes, name, ": text output does not show it; use --output json"));
  };
  const bool flag = *dashes != '\0';
  if (decoding.logprobs.value_or(false)) return unseen("logprobs");
  if (decoding.top_logprobs.value_or(0) > 0) return unseen(flag ? "top-logprobs" : "top_logprobs");
  if (decoding.return_scores.value_or(false)) {
    return unseen(flag ? "return-scores" : "return_scores");
  }
  return absl::OkStatus();
}

absl::StatusOr<LineJob> MakeJob(const Session& session, const GenerateFlags& flags,
                                DecodingRequest decoding, int64_t number, const std::string& line) {
  QT_ASSIGN_OR_RETURN(LineInput input, ReadInput(session, flags.lines, line, DecodingJsonNames()));
  if (!input.fields.is_null()) {
    QT_RETURN_IF_ERROR(ReadDecodingJson(input.fields, session.tokenizer.get(), &decoding));
  }
  QT_RETURN_IF_ERROR(CheckShown(decoding, flags.lines.output, ""));
  QT_ASSIGN_OR_RETURN(DecodingOptions options,
                      ResolveDecoding(decoding, session.defaults, session.config,
                                      flags.decoding.limits, input.ids));
  LineJob job;
  job.request.kind = RequestKind::kGenerate;
  job.request.input = std::move(input.ids);
  job.request.decoding = options;
  job.request.skip_special_tokens = flags.skip_special_tokens;
  job.request.detokenize = !options.stop.empty();
  job.format = [number, &session, &flags, options = std::move(options)](Result result,
                                                                        std::string* out) {
    if (options.stop.empty()) Detokenize(session, flags.skip_special_tokens, &result);
    *out += flags.lines.output == "json" ? FormatJson(number, result, options) : FormatText(result);
  };
  return job;
}

int Run(const GenerateFlags& given) {
  GenerateFlags flags = given;
  flags.decoding.limits.max_input_tokens = static_cast<uint32_t>(flags.model.max_input_tokens);
  int exit_code = kExitDone;
  DecodingRequest asked = flags.decoding.request;
  asked.logprobs = flags.decoding.logprobs;
  asked.return_scores = flags.decoding.return_scores;
  if (absl::Status status = CheckShown(asked, flags.lines.output, "--"); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  const SessionNeeds needs = NeedsOf(RequestKind::kGenerate, flags.lines);
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  absl::StatusOr<DecodingRequest> decoding =
      BuildDecodingRequest(flags.decoding, session->tokenizer.get());
  if (!decoding.ok()) return Fail(kExitUsage, decoding.status());
  if (absl::Status status = CheckDecodingRequest(*session, *decoding, flags.decoding.limits);
      !status.ok()) {
    return Fail(kExitUsage, status);
  }
  return RunLines(*session, flags.lines, [&](int64_t number, const std::string& line) {
    return MakeJob(*session, flags, *decoding, number, line);
  });
}

}  // namespace

void AddGenerateCommand(CommandLine& line) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = line.AddCommand(
      {"generate", "Generate text: one output line for each line of standard input.",
       "quintet generate --model deploy/models/g2p --num-beams 4 < words.txt > phonemes.txt",
       "Text output: the sequences of a line are separated by tabs; newline, carriage return, tab "
       "and backslash\n"
       "inside them are written \\n, \\r, \\t and \\\\. A failed line produces an empty line "
       "(--output json:\n"
       "an object with \"error\") and an error message; the other lines continue and the exit code "
       "is 1.\n\n"
       "--input json: a line may set decoding options of its own, under the names of the flags "
       "with underscores:\n"
       "{\"text\": \"...\", \"num_beams\": 4}."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddIgnoreGenerationFieldsFlag(command, &flags->model.ignore_generation_fields);
  AddLineFlags(command, &flags->lines, {"text", "json"});
  AddDecodingFlags(command, &flags->decoding);
  FlagGroup results(command, "Results");
  results
      .Add("--skip-special-tokens", &flags->skip_special_tokens, "BOOL",
           "Omit special tokens from the text.")
      ->default_str("true");
}

}  // namespace quintet
