// quintet encode: computes one embedding, or one for each token, for each input line, in the order
// of the input.
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/embedding.h"
#include "engine/padding.h"
#include "kernels/base/status_macros.h"
#include "spdlog/spdlog.h"
#include "tools/flag_group.h"
#include "tools/line_format.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

struct EncodeFlags {
  ModelFlags model;
  LineFlags lines;
  std::string pooling = "auto";
  EmbeddingOptions embedding;
  std::string offsets_file, pad_to;
};

constexpr std::pair<const char*, Pooling> kPoolings[] = {{"auto", Pooling::kModules},
                                                         {"none", Pooling::kNone},
                                                         {"mean", Pooling::kMean},
                                                         {"first", Pooling::kFirst},
                                                         {"last", Pooling::kLast},
                                                         {"max", Pooling::kMax},
                                                         {"mean_sqrt_len", Pooling::kMeanSqrtLen},
                                                         {"weighted_mean", Pooling::kWeightedMean}};

EmbeddingOptions OptionsOf(const EncodeFlags& flags) {
  EmbeddingOptions options = flags.embedding;
  for (const auto& [name, pooling] : kPoolings) {
    if (flags.pooling == name) options.pooling = pooling;
  }
  return options;
}

// Rewrites an error of Embedding::Create to name flags instead of options: "prompt_name: ..."
// becomes "--prompt-name: ...".
absl::Status UnderFlags(const absl::Status& status) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(status.message(), absl::MaxSplits(':', 1));
  return absl::InvalidArgumentError(
      absl::StrCat("--", absl::StrReplaceAll(parts.first, {{"_", "-"}}), ":", parts.second));
}

std::string FormatJson(int64_t number, const Result& result, bool pooled) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (int64_t row = 0; row < result.rows; ++row) {
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (int64_t i = 0; i < result.columns; ++i) {
      values.push_back(JsonFloat(result.values[static_cast<size_t>(row * result.columns + i)]));
    }
    rows.push_back(std::move(values));
  }
  nlohmann::ordered_json json = {{"line", number}, {"input_tokens", result.input_tokens}};
  if (pooled) {
    json["embedding"] = std::move(rows[0]);
  } else {
    json["embeddings"] = std::move(rows);
  }
  return JsonLine(json);
}

std::string RawBytes(const float* values, size_t count) {
  return std::string(reinterpret_cast<const char*>(values), count * sizeof(float));
}

// Returns the 128-byte header of a NumPy file (.npy format 1.0) of little-endian values. `type`: f4
// or i8. `shape`: "2, 3" for [2, 3], "2," for [2].
std::string NpyHeader(const char* type, const std::string& shape) {
  constexpr size_t kHeaderBytes = 128;
  constexpr char kMagic[] = "\x93NUMPY\x01\x00\x76\x00";  // version 1.0, 118 bytes of text
  std::string header(kMagic, 10);
  absl::StrAppend(&header, "{'descr': '<", type, "', 'fortran_order': False, 'shape': (", shape,
                  "), }");
  header.resize(kHeaderBytes - 1, ' ');
  return header + "\n";
}

absl::StatusOr<LineJob> MakeJob(const Session& session, const EncodeFlags& flags,
                                const Embedding& embedding, int64_t number,
                                const std::string& line) {
  LineFlags lines = flags.lines;
  lines.truncate |= embedding.truncates();
  QT_ASSIGN_OR_RETURN(LineInput input, ReadInput(session, lines, line, {}, &embedding));
  LineJob job;
  job.request.input = std::move(input.ids);
  embedding.Fill(!input.fields.contains("token_ids"), &job.request);
  const bool json = flags.lines.output == "json";
  job.format = [number, json, pooled = flags.pooling != "none"](const Result& result,
                                                                std::string* out) {
    *out += json ? FormatJson(number, result, pooled)
                 : RawBytes(result.values.data(), result.values.size());
  };
  return job;
}

// Returns the name of the file that receives the offsets (the row at which each input line begins),
// for example "states.offsets.npy" for the rows in "states.npy". Returns "" if no offsets are
// written.
std::string OffsetsFile(const EncodeFlags& flags) {
  if (!flags.offsets_file.empty()) return flags.offsets_file;
  const std::string& rows = flags.lines.output_file;
  if (rows.empty() || flags.lines.output == "json" || flags.pooling != "none") return "";
  std::error_code absent;
  const std::filesystem::file_status file = std::filesystem::status(rows, absent);
  if (std::filesystem::exists(file) && !std::filesystem::is_regular_file(file)) return "";
  return absl::StrCat(absl::StripSuffix(rows, ".npy"), ".offsets.npy");
}

// Returns the second output of a run, an i64 array [lines + 1] in NumPy's format. Element i is the
// index of the first row of input line i; the last element is the number of all rows.
SideOutput OffsetsOutput(const std::string& path, int64_t row_bytes) {
  const auto bytes = [](int64_t offset) {
    return std::string(reinterpret_cast<const char*>(&offset), sizeof(offset));
  };
  SideOutput offsets;
  offsets.path = path;
  offsets.record.record_bytes = sizeof(int64_t);
  offsets.record.header = [](int64_t count) { return NpyHeader("i8", absl::StrCat(count, ",")); };
  offsets.begin = bytes(0);
  offsets.of = [bytes, row_bytes, rows = int64_t{0}](const std::string& output) mutable {
    rows += static_cast<int64_t>(output.size()) / row_bytes;
    return bytes(rows);
  };
  return offsets;
}

int Run(const EncodeFlags& flags) {
  const bool binary = flags.lines.output != "json";
  if (binary && flags.lines.output_file.empty() && isatty(STDOUT_FILENO) == 1) {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                absl::StrCat("--output ", flags.lines.output,
                                             " is binary: redirect it or set --output-file")));
  }
  if (binary && flags.lines.resume && flags.pooling == "none") {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                absl::StrCat("--resume: --output ", flags.lines.output,
                                             " with --pooling none does not show where a line "
                                             "ends; use --output json")));
  }
  if (!flags.offsets_file.empty() && (!binary || flags.pooling != "none")) {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                "--offsets-file: needs --pooling none and --output npy or f32; "
                                "other outputs have one record per line"));
  }
  EmbeddingOptions options = OptionsOf(flags);
  if (!flags.pad_to.empty()) {
    const absl::Status padding = ParsePadding(flags.pad_to, &options.pad_to, &options.pad_mode);
    if (!padding.ok()) return Fail(kExitUsage, UnderFlags(padding));
  }
  int exit_code = kExitDone;
  const SessionNeeds needs = NeedsOf(RequestKind::kEncode, flags.lines);
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  const absl::StatusOr<Embedding> embedding =
      Embedding::Create(options, session->config, session->modules.get(), session->tokenizer.get(),
                        flags.model.max_input_tokens);
  if (!embedding.ok()) return Fail(kExitUsage, UnderFlags(embedding.status()));
  LineCommand command;
  command.parse = [&](int64_t number, const std::string& line) {
    return MakeJob(*session, flags, *embedding, number, line);
  };
  // Number of columns of the matrix that --output f32 and npy write. In these binary formats a
  // failed line becomes a row of NaN.
  const int64_t columns = embedding->columns();
  const std::vector<float> nan(static_cast<size_t>(columns),
                               std::numeric_limits<float>::quiet_NaN());
  command.format_error = [&](int64_t number, const absl::Status& error) {
    return binary ? RawBytes(nan.data(), nan.size()) : JsonError(number, error);
  };
  if (binary) command.record.record_bytes = columns * static_cast<int64_t>(sizeof(float));
  if (flags.lines.output == "npy") {
    command.record.header = [columns](int64_t rows) {
      return NpyHeader("f4", absl::StrCat(rows, ", ", columns));
    };
  }
  if (const std::string path = OffsetsFile(flags); !path.empty()) {
    command.side = OffsetsOutput(path, command.record.record_bytes);
  } else if (binary && flags.pooling == "none") {
    spdlog::warn("the output does not show where a line ends: set --output-file or --offsets-file");
  }
  return RunLines(*session, flags.lines, command);
}

void AddPaddingFlag(FlagGroup* encoding, std::string* pad_to) {
  encoding->Add("--pad-to", pad_to, "N[:MODE]",
                "Truncate or pad every input to N tokens, with --pooling none. attend: padding "
                "tokens are part of the input, as in Flux, Stable Diffusion 3, CogVideoX and "
                "LTX-Video. zero: inputs are encoded without padding and its rows are zero, as "
                "in Wan. Default: no padding. Range of N: [1, --max-input-tokens].");
}

}  // namespace

void AddEncodeCommand(CommandLine& line) {
  auto flags = std::make_shared<EncodeFlags>();
  flags->lines.output = "json";
  CLI::App* command = line.AddCommand(
      {"encode", "Embed text: pooled hidden states for each line of standard input.",
       "quintet encode --model DIR --pooling mean --normalize "
       "--output npy < lines.txt > embeddings.npy",
       "The modules of a sentence-transformers directory (modules.json) are applied; texts are "
       "truncated to its\nmax_seq_length.\n\n"
       "Outputs: json, one object per line; f32, raw little-endian values [rows, "
       "columns]; npy, the same as a\n"
       "NumPy file. A failed line becomes an object with \"error\" or a row of NaN, "
       "and the exit code is 1.\n\n"
       "With --pooling none each line has one row per token. The rows of line i (from 0) of a "
       "binary "
       "output are\nrows offsets[i] to offsets[i + 1] - 1; --output-file FILE.npy also writes "
       "FILE.offsets.npy."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddLineFlags(command, &flags->lines, {"json", "f32", "npy"});
  FlagGroup encoding(command, "Encoding");
  encoding.Add("--pooling", &flags->pooling, "POOLING",
               "Pooling of the hidden states. auto: that of the directory's modules.json, "
               "otherwise mean. Another pooling replaces it; the modules after it are applied "
               "as well. none: one row of hidden states per token, without any module.",
               CLI::IsMember({"auto", "none", "mean", "first", "last", "max", "mean_sqrt_len",
                              "weighted_mean"}));
  encoding.Add("--offsets-file", &flags->offsets_file, "FILE",
               "NumPy file for the offsets of each line's rows with --pooling none and --output "
               "npy or f32: i64 [lines + 1]. Default: FILE.offsets.npy for --output-file "
               "FILE.npy.");
  AddPaddingFlag(&encoding, &flags->pad_to);
  encoding.AddSwitch("--normalize", &flags->embedding.normalize,
                     "Scale embeddings to unit length, after the modules of the directory.");
  const auto prompt = [&](const char* name, std::optional<std::string>* value, const char* help) {
    command
        ->add_option_function<std::string>(
            name, [value](const std::string& text) { *value = text; }, help)
        ->type_name("TEXT")
        ->group("Encoding");
  };
  prompt("--prompt-name", &flags->embedding.prompt_name,
         "Name of a prompt of config_sentence_transformers.json to put before every text. "
         "Default: its default_prompt_name. An empty name is no prompt.");
  prompt("--prompt", &flags->embedding.prompt, "Text to put before every text.");
}

}  // namespace quintet
