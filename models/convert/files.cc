#include "models/convert/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/config/sentence_modules.h"
#include "models/tokenizers/tokenizer_file.h"

namespace quintet {
namespace {

constexpr int64_t kMaxCompanionBytes = int64_t{256} << 20;

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "spiece.model",          "vocab.json",
    "merges.txt"};
constexpr const char* kModelFiles[] = {"generation_config.json", "modules.json",
                                       "sentence_bert_config.json",
                                       "config_sentence_transformers.json"};

bool IsTokenizerFile(const std::string& name) {
  return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) !=
         std::end(kTokenizerFiles);
}

// Files of the model that are copied: those in kModelFiles, and licence texts, because a licence
// covers the weights.
bool IsCopied(const std::string& name) {
  for (const char* file : kModelFiles) {
    if (name == file) return true;
  }
  for (const char* word : {"LICENSE", "LICENCE", "NOTICE", "COPYING"}) {
    if (absl::StrContains(name, word)) return true;
  }
  return false;
}

absl::Status WriteFailed(const std::string& name) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", name));
}

// Copies one file of `source` under the same name to `target`.
absl::Status CopyFile(const std::string& source, const std::string& target, const std::string& name,
                      bool follow_symlinks) {
  const std::string path = absl::StrCat(source, "/", name);
  if (!follow_symlinks) {
    QT_RETURN_IF_ERROR(ResolveLink(path).status());
  }
  QT_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxCompanionBytes));
  return WriteFile(absl::StrCat(target, "/", name), text);
}

// Copies the sub-directories of the sentence-transformers modules.
absl::Status CopyModules(const std::string& source, const std::string& target,
                         bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(const std::vector<std::string> folders, SentenceModuleFolders(source));
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::create_directory(absl::StrCat(target, "/", folder), error);
    if (error) {
      return absl::InternalError(absl::StrCat("cannot make ", folder, ": ", error.message()));
    }
    for (const char* name : {"/config.json", "/model.safetensors"}) {
      if (!std::filesystem::exists(absl::StrCat(source, "/", folder, name), error)) continue;
      QT_RETURN_IF_ERROR(CopyFile(source, target, folder + name, follow_symlinks));
    }
  }
  return absl::OkStatus();
}

// Copies each file of the directory `source` if `wanted` returns true for its name.
absl::Status CopyFiles(const std::string& source, bool (*wanted)(const std::string& name),
                       const CompanionOptions& options) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(source, error)) {
    const std::string name = entry.path().filename().string();
    if (wanted(name) && !entry.is_directory(error)) names.push_back(name);
  }
  for (const std::string& name : names) {
    QT_RETURN_IF_ERROR(CopyFile(source, options.target, name, options.follow_symlinks));
  }
  return absl::OkStatus();
}

// Writes the tokenizer if options.tokenizer is one file, not a directory.
absl::Status WriteTokenizer(const CompanionOptions& options) {
  const std::string& path = options.tokenizer;
  if (ModelFormatOf(path) == ModelFormat::kDirectory) {  // a tokenizer.json or a spiece.model
    const bool json = absl::EndsWith(path, ".json");
    QT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxCompanionBytes));
    return WriteFile(options.target + (json ? "/tokenizer.json" : "/spiece.model"), text);
  }
  const absl::StatusOr<std::string> model = EmbeddedSentencePiece(path);
  if (absl::IsNotFound(model.status())) return absl::OkStatus();
  QT_RETURN_IF_ERROR(model.status());
  return WriteFile(options.target + "/spiece.model", *model);
}

}  // namespace

absl::Status CopyCompanions(const CompanionOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(options.tokenizer, error)) {
    QT_RETURN_IF_ERROR(CopyFiles(options.tokenizer, IsTokenizerFile, options));
  } else {
    QT_RETURN_IF_ERROR(WriteTokenizer(options));
  }
  if (!std::filesystem::is_directory(options.source, error)) return absl::OkStatus();
  QT_RETURN_IF_ERROR(CopyFiles(options.source, IsCopied, options));
  return CopyModules(options.source, options.target, options.follow_symlinks);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return WriteFailed(name);
  absl::Status status;
  for (size_t done = 0; done < text.size() && status.ok();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += n;
    } else if (errno != EINTR) {
      status = WriteFailed(name);
    }
  }
  if (close(fd) != 0 && status.ok()) status = WriteFailed(name);
  return status;
}

absl::Status WriteJson(const std::string& path, const nlohmann::json& value) {
  // All strings were checked to be UTF-8 when they were read. error_handler_t::replace only makes
  // sure that nlohmann's dump, which writes the JSON text, cannot throw an exception.
  return WriteFile(path,
                   value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace quintet
