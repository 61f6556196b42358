#include "models/convert/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/config/sentence_modules.h"

namespace quintet {
namespace {

constexpr int64_t kMaxCompanionBytes = int64_t{256} << 20;

constexpr const char* kCompanions[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
};

// Returns whether a file of the source directory is copied. This is true for the files in
// kCompanions, and for licence texts, because a licence covers the weights.
bool IsCompanion(const std::string& name) {
  for (const char* companion : kCompanions) {
    if (name == companion) return true;
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

}  // namespace

absl::Status CopyCompanions(const std::string& source, const std::string& target,
                            bool follow_symlinks) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(source, error)) {
    const std::string name = entry.path().filename().string();
    if (IsCompanion(name) && !entry.is_directory(error)) names.push_back(name);
  }
  for (const std::string& name : names) {
    QT_RETURN_IF_ERROR(CopyFile(source, target, name, follow_symlinks));
  }
  return CopyModules(source, target, follow_symlinks);
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
