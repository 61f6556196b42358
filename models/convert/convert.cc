#include "models/convert/convert.h"

#include <limits.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/linear.h"
#include "models/checkpoint/atomic_directory.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/weight_files.h"
#include "models/config/config.h"
#include "models/config/derived_config.h"
#include "models/convert/files.h"
#include "models/convert/weights.h"
#include "models/weights/fat5_names.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

const char* StoredName(DType dtype) {
  return dtype == DType::kI8 ? "int8" : dtype == DType::kF8 ? "fp8" : DTypeName(dtype);
}

// Normalizes "dir/." and "dir//" to "dir".
fs::path WithoutTrailingSlash(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Returns INVALID_ARGUMENT if source and target are the same directory or one contains the other,
// after resolving symbolic links. Replacing the target would then delete the source.
absl::Status CheckNesting(const std::string& source, const std::string& target) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(source, error);
  if (error) return absl::OkStatus();  // reading the source reports this error
  const fs::path to = fs::weakly_canonical(target, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("'", target, "': ", error.message()));
  }
  // std::filesystem::equivalent also detects bind mounts, which give one directory two paths
  // without symbolic links.
  if (from == to || fs::equivalent(from, to, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", target, "' is the model itself; convert to another directory"));
  }
  for (const auto& [outer, inner] : {std::pair(from, to), std::pair(to, from)}) {
    const fs::path relative = inner.lexically_relative(outer);
    if (relative.empty() || *relative.begin() == "..") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", inner.string(), "' is inside '", outer.string(),
                     "'; model and output must be separate directories"));
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const fs::path& target) {
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  // pathconf returns -1 if the maximum length of a file name in the directory `parent` is unknown,
  // for instance because this directory does not exist.
  const long longest = pathconf(parent.c_str(), _PC_NAME_MAX);
  const int64_t limit = (longest > 0 ? longest : NAME_MAX) - kTemporaryNameBytes;
  const int64_t size = static_cast<int64_t>(target.filename().native().size());
  if (size > limit) {
    return absl::InvalidArgumentError(absl::StrCat("the name of the directory has ", size,
                                                   " bytes, more than the limit of ", limit,
                                                   " (temporary names are longer)"));
  }
  constexpr int64_t kLongestFile = 64;  // bytes of the longest file name in the target
  const int64_t path_size = static_cast<int64_t>(target.native().size());
  const int64_t path_limit = PATH_MAX - kTemporaryNameBytes - kLongestFile;
  if (path_size > path_limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path has ", path_size, " bytes, more than the limit of ", path_limit));
  }
  return absl::OkStatus();
}

// For errors about the conversion's target directory: returns `status`, with code ABORTED instead
// of NOT_FOUND or FAILED_PRECONDITION. Callers take these two codes for errors in the source model.
absl::Status TargetError(const absl::Status& status) {
  const bool model_code = absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  return model_code ? absl::AbortedError(status.message()) : status;
}

// Returns ABORTED if options.replace (--force) is set and the target is neither a model directory
// nor empty. This prevents the deletion of, for instance, a home directory.
absl::Status CheckReplaceable(const ConvertOptions& options) {
  std::error_code error;
  if (!options.replace || !fs::is_directory(options.target, error)) return absl::OkStatus();
  if (fs::exists(options.target + "/config.json", error) || fs::is_empty(options.target, error)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      options.target, " has no config.json, so it is not a model directory and is not replaced"));
}

absl::Status CheckForm(const ConvertOptions& options, const ModelConfig& config,
                       const nlohmann::json& file) {
  if (options.form == ConvertForm::kPacked) return absl::OkStatus();
  if (ModelFormatOf(options.source) != ModelFormat::kDirectory) {
    return absl::FailedPreconditionError(
        "the source is one file; only Quintet's packed format can be made of it");
  }
  if (file.contains("quintet")) {
    return absl::FailedPreconditionError(
        "the source is already converted; use the original checkpoint");
  }
  if (options.dtype.has_value() && IsQuantized(*options.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(StoredName(*options.dtype), " is supported only for Quintet's packed format"));
  }
  return options.form == ConvertForm::kFat5 ? CheckExpressibleAsFat5(config)
                                            : CheckExpressibleAsT5(config);
}

struct Source {
  std::unique_ptr<const WeightFiles> files;
  nlohmann::json config_file;
  ModelConfig config;
};

absl::StatusOr<Source> OpenSource(const ConvertOptions& options) {
  if (ModelFormatOf(options.source) == ModelFormat::kDirectory && !options.follow_symlinks) {
    QT_RETURN_IF_ERROR(ResolveLink(options.source + "/config.json").status());
  }
  QT_ASSIGN_OR_RETURN(nlohmann::json file, ReadConfigFile(options.source));
  QT_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(options.source));
  QT_RETURN_IF_ERROR(CheckForm(options, config, file));
  QT_ASSIGN_OR_RETURN(std::unique_ptr<const WeightFiles> files,
                      WeightFiles::Open(options.source, options.follow_symlinks));
  return Source{std::move(files), std::move(file), std::move(config)};
}

absl::StatusOr<ConvertResult> WritePacked(const ConvertOptions& options, Source& source,
                                          const std::string& directory) {
  QT_ASSIGN_OR_RETURN(
      ConvertResult result,
      WritePackedWeights(*source.files, &source.config, options, directory + "/model.safetensors"));
  nlohmann::json file = source.config_file;
  file["quintet"] = {{"format", 1},
                     {"dtype", StoredName(result.dtype)},
                     {"scale_logits", source.config.scale_logits.value_or(false)},
                     {"weights_sha256", result.weights_sha256}};
  QT_RETURN_IF_ERROR(WriteJson(directory + "/config.json", file));
  return result;
}

absl::StatusOr<ConvertResult> WriteRenamed(const ConvertOptions& options, Source& source,
                                           const std::string& directory) {
  QT_ASSIGN_OR_RETURN(RenamedWeights result,
                      WriteRenamedWeights(*source.files, &source.config, options,
                                          directory + "/model.safetensors"));
  const nlohmann::json config =
      options.form == ConvertForm::kFat5
          ? Fat5ConfigOfT5(source.config_file, source.config)
          : T5ConfigOfFat5(source.config_file, source.config, result.tied);
  QT_RETURN_IF_ERROR(WriteJson(directory + "/config.json", config));
  return result.written;
}

}  // namespace

absl::Status CheckConvertTarget(const std::string& source, const std::string& target) {
  if (target.empty()) return absl::InvalidArgumentError("expected a directory, got an empty path");
  const fs::path path = WithoutTrailingSlash(target);
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", target, "' does not end in the name of a directory to make"));
  }
  QT_RETURN_IF_ERROR(CheckLength(path));
  return CheckNesting(source, target);
}

absl::StatusOr<ConvertResult> Convert(const ConvertOptions& options) {
  QT_RETURN_IF_ERROR(CheckConvertTarget(options.source, options.target));
  QT_RETURN_IF_ERROR(CheckReplaceable(options));
  QT_CHECK(options.adapter == nullptr || options.form == ConvertForm::kPacked);
  QT_ASSIGN_OR_RETURN(Source source, OpenSource(options));
  absl::StatusOr<AtomicDirectory> directory =
      AtomicDirectory::Create(options.target, {.replace = options.replace});
  if (!directory.ok()) return TargetError(directory.status());
  const std::string& path = directory->path();
  QT_ASSIGN_OR_RETURN(ConvertResult result, options.form == ConvertForm::kPacked
                                                ? WritePacked(options, source, path)
                                                : WriteRenamed(options, source, path));
  QT_ASSIGN_OR_RETURN(const std::string tokenizer,
                      FindTokenizer(options.tokenizer, options.source, options.follow_symlinks));
  QT_RETURN_IF_ERROR(CopyCompanions({options.source, tokenizer, path, options.follow_symlinks}));
  if (options.accept) QT_RETURN_IF_ERROR(options.accept(path, result));
  QT_RETURN_IF_ERROR(directory->Commit());
  return result;
}

}  // namespace quintet
