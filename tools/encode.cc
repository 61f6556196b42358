// quintet encode: one embedding (or one for each token) for each input line, in order.
#include <unistd.h>

#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tools/line_format.h"
#include "tools/line_runner.h"

namespace quintet {
namespace {

struct EncodeFlags {
  ModelFlags model;
  LineFlags lines;
  std::string pooling = "mean";
  bool normalize = false;
};

Pooling PoolingOf(const std::string& name) {
  return name == "none"    ? Pooling::kNone
         : name == "first" ? Pooling::kFirst
         : name == "last"  ? Pooling::kLast
                           : Pooling::kMean;
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

// The 128 bytes before the values of a NumPy file (format 1.0) of f32 [rows, columns].
std::string NpyHeader(int64_t rows, int64_t columns) {
  constexpr size_t kHeaderBytes = 128;
  constexpr char kMagic[] = "\x93NUMPY\x01\x00\x76\x00";  // version 1.0, 118 bytes of text
  std::string header(kMagic, 10);
  absl::StrAppend(&header, "{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ",
                  columns, "), }");
  header.resize(kHeaderBytes - 1, ' ');
  return header + "\n";
}

// Writer for --output npy. Begin writes a header with 0 rows, the caller writes the rows, and End
// overwrites the header with the final row count.
class NpyFile {
 public:
  explicit NpyFile(int64_t columns) : columns_(columns) {}

  absl::Status Begin() {
    if (lseek(STDOUT_FILENO, 0, SEEK_CUR) != 0) {
      return absl::InvalidArgumentError(
          "--output npy: standard output must be an empty regular file (quintet encode ... > "
          "FILE)");
    }
    const std::string header = NpyHeader(0, columns_);
    return write(STDOUT_FILENO, header.data(), header.size()) == static_cast<ssize_t>(header.size())
               ? absl::OkStatus()
               : absl::UnavailableError("writing standard output failed");
  }
  void AddRows(int64_t rows) { rows_ += rows; }
  absl::Status End() {
    const std::string header = NpyHeader(rows_, columns_);
    return pwrite(STDOUT_FILENO, header.data(), header.size(), 0) ==
                   static_cast<ssize_t>(header.size())
               ? absl::OkStatus()
               : absl::UnavailableError("writing standard output failed");
  }

 private:
  int64_t columns_, rows_ = 0;
};

absl::StatusOr<LineJob> MakeJob(const Session& session, const EncodeFlags& flags, NpyFile* npy,
                                int64_t number, const std::string& line) {
  QT_ASSIGN_OR_RETURN(LineInput input, ReadInput(session, flags.lines, line));
  LineJob job;
  job.request.kind = RequestKind::kEncode;
  job.request.input = std::move(input.ids);
  job.request.pooling = PoolingOf(flags.pooling);
  job.request.normalize = flags.normalize;
  const bool json = flags.lines.output == "json";
  job.format = [number, json, pooled = flags.pooling != "none", npy](const Result& result,
                                                                     std::string* out) {
    *out += json ? FormatJson(number, result, pooled)
                 : RawBytes(result.values.data(), result.values.size());
    npy->AddRows(result.rows);
  };
  return job;
}

int Run(const EncodeFlags& flags) {
  if (flags.lines.output != "json" && isatty(STDOUT_FILENO) == 1) {
    return Fail(kExitUsage,
                absl::InvalidArgumentError(absl::StrCat("--output ", flags.lines.output,
                                                        " is binary: redirect it to a file")));
  }
  int exit_code = kExitDone;
  const SessionNeeds needs = NeedsOf(RequestKind::kEncode, flags.model, flags.lines);
  std::unique_ptr<Session> session = OpenSession(flags.model, needs, &exit_code);
  if (session == nullptr) return exit_code;
  NpyFile npy(session->config.d_model);
  const bool is_npy = flags.lines.output == "npy";
  if (is_npy) {
    if (absl::Status status = npy.Begin(); !status.ok()) {
      return Fail(absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed, status);
    }
  }
  LineCommand command;
  command.parse = [&](int64_t number, const std::string& line) {
    return MakeJob(*session, flags, &npy, number, line);
  };
  // A failed line becomes one row of NaN in binary output.
  const std::vector<float> nan(static_cast<size_t>(session->config.d_model),
                               std::numeric_limits<float>::quiet_NaN());
  command.format_error = [&](int64_t number, const absl::Status& error) {
    if (flags.lines.output == "json") return JsonError(number, error);
    npy.AddRows(1);
    return RawBytes(nan.data(), nan.size());
  };
  exit_code = RunLines(*session, command);
  if (is_npy) {
    if (absl::Status status = npy.End(); !status.ok()) return Fail(kExitFailed, status);
  }
  return exit_code;
}

}  // namespace

void AddEncodeCommand(CommandLine& line) {
  auto flags = std::make_shared<EncodeFlags>();
  flags->lines.output = "json";
  CLI::App* command = line.AddCommand(
      {"encode", "Embed text: pooled hidden states for each line of standard input.",
       "quintet encode --model DIR --pooling mean --normalize "
       "--output npy < lines.txt > embeddings.npy",
       "Outputs: json, one object per line; f32, raw little-endian values [rows, "
       "d_model]; npy, the same as a\n"
       "NumPy file. A failed line becomes an object with \"error\" or a row of NaN, "
       "and the exit code is 1."},
      [flags] { return Run(*flags); });
  AddModelFlags(line, command, &flags->model);
  AddLineFlags(command, &flags->lines, {"json", "f32", "npy"});
  command
      ->add_option("--pooling", flags->pooling,
                   "Pooling of the hidden states: mean, first, last, or none (one row per token).")
      ->check(CLI::IsMember({"none", "mean", "first", "last"}))
      ->type_name("POOLING")
      ->group("Encoding");
  command->add_flag("--normalize", flags->normalize, "Scale embeddings to unit length.")
      ->group("Encoding");
}

}  // namespace quintet
