#include "models/adapters/adapter_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checkpoint_file.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

constexpr char kPeftConfig[] = "adapter_config.json";
constexpr char kPeftWeights[] = "adapter_model.safetensors";

absl::Status CheckSize(const SafetensorsReader& file) {
  int64_t bytes = 0;
  for (const StoredTensor& tensor : file.tensors()) bytes += tensor.bytes;  // within the file
  if (bytes <= kMaxAdapterBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the adapter's tensors have ", bytes, " bytes, more than the limit of ", kMaxAdapterBytes));
}

// Says why a directory is not an adapter, or OK.
absl::Status CheckDirectory(const std::string& directory) {
  if (!HasEntry(directory, kPeftConfig)) {
    if (HasEntry(directory, "config.json")) {
      return absl::InvalidArgumentError(
          "the directory holds a model, not an adapter; expected adapter_config.json and "
          "adapter_model.safetensors");
    }
    return absl::NotFoundError(
        "no adapter_config.json in the directory; expected a directory that PEFT wrote, or a "
        "*.safetensors file of kohya's format");
  }
  if (HasEntry(directory, kPeftWeights)) return absl::OkStatus();
  if (HasEntry(directory, "adapter_model.bin")) {
    return absl::InvalidArgumentError(
        "adapter_model.bin: pickle files are not supported. Convert it with: python3 -c \"import "
        "sys, torch, safetensors.torch as s; p = sys.argv[1]; "
        "s.save_file(torch.load(p + '/adapter_model.bin', weights_only=True), p + "
        "'/adapter_model.safetensors')\" DIRECTORY");
  }
  return absl::NotFoundError("no adapter_model.safetensors in the directory of the adapter");
}

absl::StatusOr<AdapterFiles> OpenPeft(const std::string& directory, bool follow_symlinks) {
  QT_RETURN_IF_ERROR(CheckDirectory(directory));
  QT_ASSIGN_OR_RETURN(AdapterConfig config, ReadAdapterConfig(directory, follow_symlinks));
  QT_ASSIGN_OR_RETURN(
      SafetensorsReader weights,
      SafetensorsReader::OpenFile(absl::StrCat(directory, "/", kPeftWeights), follow_symlinks));
  return AdapterFiles{std::move(config), std::move(weights)};
}

absl::StatusOr<AdapterFiles> Open(const std::string& path, bool follow_symlinks) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return OpenPeft(path, follow_symlinks);
  if (!fs::exists(status)) return absl::NotFoundError("no such directory or file");
  if (!absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError(
        "expected a directory that PEFT wrote, or a *.safetensors file of kohya's format");
  }
  QT_ASSIGN_OR_RETURN(SafetensorsReader weights,
                      SafetensorsReader::OpenFile(path, follow_symlinks));
  return AdapterFiles{std::nullopt, std::move(weights)};
}

}  // namespace

absl::StatusOr<AdapterFiles> OpenAdapterFiles(const std::string& path, bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(AdapterFiles files, Open(path, follow_symlinks));
  QT_RETURN_IF_ERROR(CheckSize(files.weights));
  return files;
}

AdapterStamp StampAdapter(const std::string& path) {
  AdapterStamp stamp;
  for (const std::string& file :
       {path, absl::StrCat(path, "/", kPeftConfig), absl::StrCat(path, "/", kPeftWeights)}) {
    struct stat info;
    if (stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    for (const int64_t value :
         {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
          static_cast<int64_t>(info.st_size), static_cast<int64_t>(info.st_mtim.tv_sec),
          static_cast<int64_t>(info.st_mtim.tv_nsec), static_cast<int64_t>(info.st_ctim.tv_sec),
          static_cast<int64_t>(info.st_ctim.tv_nsec)}) {
      stamp.push_back(value);
    }
  }
  return stamp;
}

}  // namespace quintet
