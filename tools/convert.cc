// quintet convert: writes checkpoints in Quintet's packed format, and converts T5 to FAT5 and back.
#include "models/convert/convert.h"
#include "kernels/base/status_macros.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/runtime/cores.h"
#include "models/adapters/adapter.h"
#include "models/checkpoint/find_model.h"
#include "models/config/config.h"
#include "models/verify.h"
#include "models/verify_merge.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/flag_values.h"
#include "tools/interrupt.h"
#include "tools/placement_flags.h"
#include "tools/session.h"

namespace quintet {
namespace {

struct ConvertFlags {
  std::string model, tokenizer, out, adapter, dtype = "source", to = "quintet", output = "text";
  bool force = false, verify = false, follow_symlinks = false;
  int threads = 0;
};

std::optional<DType> StoredTypeOf(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "f16") return DType::kF16;
  if (name == "int8") return DType::kI8;
  if (name == "fp8") return DType::kF8;
  return std::nullopt;
}

struct Verification {
  std::vector<StageError> stages;
  double tolerance = 0;
  double worst() const {
    double error = 0;
    for (const StageError& stage : stages) error = std::max(error, stage.error);
    return error;
  }
};

// Compares the converted model with its source, and fills verification->stages.
absl::Status Compare(const ConvertFlags& flags, const Adapter* adapter,
                     const std::string& directory, DType stored, Verification* verification) {
  if (adapter != nullptr) {
    QT_ASSIGN_OR_RETURN(verification->stages,
                        CompareMerged(flags.model, *adapter, directory, flags.follow_symlinks));
    return absl::OkStatus();
  }
  ThreadPool pool(flags.threads > 0 ? flags.threads : AvailableCores());
  VerifyOptions options;
  options.source = flags.model;
  options.result = directory;
  options.follow_symlinks = flags.follow_symlinks;
  // --verify runs the converted model on the CPU and compares it with the source. int8 weights are
  // run with int8 GEMMs. All other types are run in f32: a CPU has no fp8 GEMM, so fp8 weights are
  // dequantized.
  options.result_weights = stored == DType::kI8 ? WeightType::kI8 : WeightType::kF32;
  QT_ASSIGN_OR_RETURN(verification->stages, CompareModels(options, &pool));
  return absl::OkStatus();
}

absl::Status Verify(const ConvertFlags& flags, const Adapter* adapter, const std::string& directory,
                    DType stored, Verification* verification) {
  QT_RETURN_IF_ERROR(Compare(flags, adapter, directory, stored, verification));
  verification->tolerance = VerifyTolerance(stored);
  if (verification->worst() <= verification->tolerance) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("verification failed: error ", verification->worst(),
                                         " is above ", verification->tolerance,
                                         "; nothing was written"));
}

void PrintVerification(const Verification& verification) {
  std::printf("%-24s  %s\n", "stage", "max relative error");
  for (const StageError& stage : verification.stages) {
    std::printf("%-24s  %.2e\n", stage.stage.c_str(), stage.error);
  }
  std::printf("tolerance %.0e: %s\n", verification.tolerance,
              verification.worst() <= verification.tolerance ? "passed" : "FAILED");
}

nlohmann::json VerificationJson(const Verification& verification) {
  nlohmann::json stages = nlohmann::json::array();
  for (const StageError& stage : verification.stages) {
    stages.push_back({{"stage", stage.stage}, {"error", stage.error}});
  }
  return {{"tolerance", verification.tolerance},
          {"passed", verification.worst() <= verification.tolerance},
          {"stages", stages}};
}

int ExitCodeOf(const std::string& model, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return Fail(kExitInterrupted, status);
    case absl::StatusCode::kAlreadyExists:
      return Fail(kExitFailed, absl::AlreadyExistsError(
                                   absl::StrCat(status.message(), "; --force replaces it")));
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAborted:
      return Fail(kExitFailed, status);
    default:
      return FailModel(model, status);
  }
}

// Reads the adapter of --adapter, if any. Returns the exit code.
int OpenAdapter(const ConvertFlags& flags, std::optional<Adapter>* adapter) {
  if (flags.adapter.empty()) return kExitDone;
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(flags.model);
  if (!config.ok()) return FailModel(flags.model, config.status());
  absl::StatusOr<Adapter> read = ReadAdapter(flags.adapter, *config, flags.follow_symlinks);
  if (!read.ok()) return FailModel(flags.adapter, read.status());
  *adapter = *std::move(read);
  return kExitDone;
}

int Run(ConvertFlags flags) {
  absl::StatusOr<std::string> source = FindModel(flags.model, flags.follow_symlinks);
  if (!source.ok()) return FailModel(flags.model, source.status());
  flags.model = *std::move(source);
  ConvertOptions options;
  options.source = flags.model;
  options.tokenizer = flags.tokenizer;
  options.target = flags.out;
  options.form = flags.to == "fat5" ? ConvertForm::kFat5
                 : flags.to == "t5" ? ConvertForm::kT5
                                    : ConvertForm::kPacked;
  options.dtype = StoredTypeOf(flags.dtype);
  options.replace = flags.force;
  options.follow_symlinks = flags.follow_symlinks;
  if (options.form != ConvertForm::kPacked && options.dtype.has_value() &&
      IsQuantized(*options.dtype)) {
    return Fail(kExitUsage, absl::InvalidArgumentError(absl::StrCat(
                                "--dtype: ", flags.dtype, " needs --to quintet, got ", flags.to)));
  }
  if (options.form != ConvertForm::kPacked && !flags.adapter.empty()) {
    return Fail(kExitUsage, absl::InvalidArgumentError(
                                absl::StrCat("--adapter: needs --to quintet, got ", flags.to)));
  }
  if (absl::Status status = CheckConvertTarget(flags.model, flags.out); !status.ok()) {
    return Fail(kExitUsage, absl::Status(status.code(), absl::StrCat("--out: ", status.message())));
  }
  std::optional<Adapter> adapter;
  if (const int code = OpenAdapter(flags, &adapter); code != kExitDone) return code;
  if (adapter.has_value()) options.adapter = &*adapter;
  WatchForInterrupt();
  options.progress = [](int64_t, int64_t) { return !Interrupted(); };
  Verification verification;
  if (flags.verify || adapter.has_value()) {
    options.accept = [&](const std::string& directory, const ConvertResult& result) {
      return Verify(flags, options.adapter, directory, result.dtype, &verification);
    };
  }
  const absl::StatusOr<ConvertResult> result = Convert(options);
  const bool json = flags.output == "json";
  if (!json && !verification.stages.empty()) PrintVerification(verification);
  if (!result.ok() && !json) return ExitCodeOf(flags.model, result.status());
  nlohmann::json report;
  if (!verification.stages.empty()) report["verify"] = VerificationJson(verification);
  if (result.ok()) {
    report["tensors"] = result->tensors;
    report["bytes"] = result->bytes;
    report["weights_sha256"] = result->weights_sha256;
  }
  if (json) std::printf("%s\n", report.dump(2).c_str());
  if (!result.ok()) return ExitCodeOf(flags.model, result.status());
  if (!json) {
    std::printf("%s: %lld tensors, %lld bytes, SHA-256 %s\n", flags.out.c_str(),
                static_cast<long long>(result->tensors), static_cast<long long>(result->bytes),
                result->weights_sha256.c_str());
  }
  return kExitDone;
}

}  // namespace

void AddConvertCommand(CommandLine& line) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command =
      line.AddCommand({"convert", "Write a checkpoint in Quintet's packed form, or as FAT5 or T5.",
                       "quintet convert t5-base t5-base-int8 --dtype int8 --verify"},
                      [flags] { return Run(*flags); });
  AddModelArgument(line, command, &flags->model);
  AddTokenizerFlag(command, &flags->tokenizer);
  AddFollowSymlinksFlag(command, &flags->follow_symlinks);
  line.Require(command->add_option("out,--out", flags->out, "Output directory to create.")
                   ->type_name("DIR")
                   ->group("Files"));
  command->add_flag("--force", flags->force, "Replace --out if it exists.")->group("Files");
  command
      ->add_option(
          "--dtype", flags->dtype,
          "Stored type of the weight matrices: f32, bf16, f16, int8, fp8 (e4m3, for GPUs; ffn_out "
          "keeps its type), or source (unchanged).")
      ->check(CLI::IsMember({"source", "f32", "bf16", "f16", "int8", "fp8"}))
      ->transform(DtypeAliases())
      ->type_name("TYPE")
      ->group("Conversion");
  command
      ->add_option(
          "--to", flags->to,
          "Output format: quintet (packed), fat5 (from Hugging Face T5) or t5 (from FAT5).")
      ->check(CLI::IsMember({"quintet", "fat5", "t5"}))
      ->type_name("FORM")
      ->group("Conversion");
  command
      ->add_option("--adapter", flags->adapter,
                   "LoRA adapter to merge into the weights: a directory that PEFT wrote, or a "
                   "*.safetensors file of kohya's format for a T5 text encoder. The merged weights "
                   "are compared with model and adapter, and nothing is written if they differ.")
      ->type_name("PATH")
      ->group("Conversion");
  command
      ->add_flag("--verify", flags->verify,
                 "Run source and result on sample input, print the error of every layer and of the "
                 "logits, and write nothing if an error exceeds the tolerance.")
      ->group("Conversion");
  command
      ->add_option("--threads", flags->threads,
                   "Number of threads of --verify; 0 = one per physical core available to the "
                   "process. Range [0, 1024].")
      ->check(InRange(0, 1024))
      ->type_name("THREADS")
      ->group("Conversion");
  command->add_option("--output", flags->output, "Format of the report: text or json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group("Conversion");
}

}  // namespace quintet
