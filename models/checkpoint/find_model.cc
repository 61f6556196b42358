#include "models/checkpoint/find_model.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/pipeline_directory.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

constexpr char kFolderPrefix[] = "models--";
constexpr size_t kMaxNameBytes = 96;

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

// Returns whether `name` may be the organization or the name in a repository id. The rules are
// those of huggingface_hub's validate_repo_id.
bool IsRepositoryPart(absl::string_view name) {
  const auto edge = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), IsNameCharacter) && edge(name.front()) &&
         edge(name.back()) && !absl::StrContains(name, "--") && !absl::StrContains(name, "..");
}

// Returns whether `revision` may be the name of a branch, tag or commit. It is used as a path below
// refs/ and snapshots/; therefore no component of it may begin with '.'.
bool IsRevision(absl::string_view revision) {
  if (revision.empty() || revision.size() > 255) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(revision, '/');
  return std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return !part.empty() && part[0] != '.' && std::all_of(part.begin(), part.end(), [](char c) {
      return IsNameCharacter(c) || c == '+' || c == '=';
    });
  });
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Replaces a leading ~, then $NAME and ${NAME} where the variable is set, as Python's expanduser
// and expandvars do.
std::string Expanded(const std::string& text) {
  std::string path = text;
  if (path == "~" || absl::StartsWith(path, "~/")) path = Variable("HOME") + path.substr(1);
  std::string expanded;
  for (size_t at = 0; at < path.size();) {
    const bool braced = path.compare(at, 2, "${") == 0;
    const size_t begin = at + (braced ? 2 : 1);
    size_t end = begin;
    while (end < path.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(path[end])) || path[end] == '_')) {
      ++end;
    }
    const bool closed = !braced || (end < path.size() && path[end] == '}');
    const std::string name = path.substr(std::min(begin, path.size()), end - begin);
    if (path[at] == '$' && closed && std::getenv(name.c_str()) != nullptr) {
      expanded += Variable(name.c_str());
      at = end + (braced ? 1 : 0);
    } else {
      expanded += path[at++];
    }
  }
  return expanded;
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Lists revisions of a cached repository for a message: the branches and tags under refs/ or, if
// there are none, the commits under snapshots/.
std::string KnownRevisions(const std::string& folder) {
  std::vector<std::string> names = EntryNames(folder + "/refs");
  if (names.empty()) names = EntryNames(folder + "/snapshots");
  constexpr size_t kMost = 8;
  if (names.size() > kMost) names.resize(kMost);
  for (std::string& name : names) name = Printable(name);
  return absl::StrJoin(names, ", ");
}

// `folder` is a repository's folder in the hub cache. Returns the directory of its snapshot of
// revision id.revision (empty: main); an empty string if there is no such revision. Errors: the ref
// of the revision does not name a snapshot.
absl::StatusOr<std::string> FindSnapshot(const std::string& folder, const HubId& id) {
  const std::string revision = id.revision.empty() ? "main" : id.revision;
  constexpr int64_t kMaxRefBytes = 256;
  std::string commit = revision;
  absl::StatusOr<std::string> ref =
      ReadFile(absl::StrCat(folder, "/refs/", revision), kMaxRefBytes);
  if (ref.ok()) {
    commit = std::string(absl::StripAsciiWhitespace(*ref));
    if (!IsRevision(commit) || absl::StrContains(commit, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("refs/", revision, " in ", folder, " is damaged: expected a commit, got ",
                       Printable(commit), "; download it with: ", id.DownloadCommand()));
    }
  }
  const std::string snapshot = absl::StrCat(folder, "/snapshots/", commit);
  if (IsDirectory(snapshot)) return snapshot;
  if (!ref.ok()) return "";
  return absl::NotFoundError(absl::StrCat("refs/", revision, " in ", folder, " names the snapshot ",
                                          Printable(commit),
                                          ", which does not exist: the ref is damaged or the "
                                          "download is incomplete; download it with: ",
                                          id.DownloadCommand()));
}

absl::StatusOr<std::string> FindInCache(const std::string& model, const HubId& id) {
  const std::string cache = HubCacheDirectory();
  const std::string folder =
      absl::StrCat(cache, "/", kFolderPrefix, absl::StrReplaceAll(id.repository, {{"/", "--"}}));
  QT_ASSIGN_OR_RETURN(const std::string snapshot, FindSnapshot(folder, id));
  if (!snapshot.empty()) return snapshot;
  const std::string known = KnownRevisions(folder);
  if (!known.empty()) {
    return absl::NotFoundError(
        absl::StrCat("revision ", id.revision.empty() ? "main" : id.revision, " of ", id.repository,
                     " is not in the Hugging Face cache ", cache, ", which has: ", known,
                     "; download it with: ", id.DownloadCommand()));
  }
  return absl::NotFoundError(absl::StrCat(
      "no such directory, and no such model in the Hugging Face cache ", cache, "; if ", model,
      " is a model on the hub, download it with: ", id.DownloadCommand()));
}

// Returns the hub cache's folder models--* that contains `directory`, which must be a canonical
// path; empty if `directory` is not in such a folder.
std::string CacheFolder(const fs::path& directory) {
  for (fs::path at = directory; at.has_relative_path(); at = at.parent_path()) {
    if (absl::StartsWith(at.filename().string(), kFolderPrefix) &&
        IsDirectory((at / "snapshots").string())) {
      return at.string();
    }
  }
  return "";
}

bool IsModelFile(const std::string& name) {
  for (const char* suffix : {".json", ".safetensors", ".model", ".txt"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return false;
}

// True for a file that is a whole model. A model.safetensors next to a config.json is not: it is a
// part of the model in its directory.
bool IsModelOfOneFile(const std::string& path) {
  if (absl::EndsWith(path, ".gguf")) return true;
  const fs::path file(path);
  return absl::EndsWith(path, ".safetensors") &&
         !absl::StartsWith(file.filename().string(), "adapter_model") &&
         !(file.filename() == "model.safetensors" && HasEntry(file.parent_path(), "config.json"));
}

absl::StatusOr<std::string> Located(const std::string& model) {
  std::error_code error;
  if (IsDirectory(model)) return model;
  if (fs::exists(fs::symlink_status(model, error))) return model;
  const std::optional<HubId> id = ParseHubId(model);
  if (id) return FindInCache(model, *id);
  if (model.empty()) {
    return absl::NotFoundError("expected a directory or the id of a Hugging Face model, got \"\"");
  }
  return absl::NotFoundError("no such directory, and not the id of a Hugging Face model");
}

}  // namespace

std::string HubId::DownloadCommand() const {
  return absl::StrCat("hf download ", repository,
                      revision.empty() ? "" : absl::StrCat(" --revision ", revision));
}

std::optional<HubId> ParseHubId(std::string_view text) {
  absl::string_view rest(text.data(), text.size());
  HubId id;
  if (const size_t at = rest.find('@'); at != absl::string_view::npos) {
    id.revision = std::string(rest.substr(at + 1));
    if (!IsRevision(id.revision)) return std::nullopt;
    rest = rest.substr(0, at);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() > 2 || !std::all_of(parts.begin(), parts.end(), IsRepositoryPart)) {
    return std::nullopt;
  }
  id.repository = std::string(rest);
  return id;
}

std::string HubCacheDirectory() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = Variable(name); !value.empty()) return Expanded(value);
  }
  if (const std::string home = Variable("HF_HOME"); !home.empty()) return Expanded(home) + "/hub";
  std::string cache = Variable("XDG_CACHE_HOME");
  if (cache.empty()) cache = absl::StrCat(Variable("HOME"), "/.cache");
  return Expanded(cache) + "/huggingface/hub";
}

std::optional<HubId> HubIdOfSnapshot(const std::string& directory) {
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  if (error) return std::nullopt;
  const std::string folder = CacheFolder(canonical);
  if (folder.empty()) return std::nullopt;
  const std::string name = fs::path(folder).filename().string().substr(sizeof(kFolderPrefix) - 1);
  return ParseHubId(absl::StrReplaceAll(name, {{"--", "/"}}));
}

absl::StatusOr<std::string> ResolveLink(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path link(path);
  const std::string where = Printable(link.filename().string());
  const fs::path directory =
      fs::canonical(link.has_parent_path() ? link.parent_path() : ".", error);
  const std::string folder = error ? "" : CacheFolder(directory);
  const fs::path target = fs::canonical(link, error);
  if (error) {
    const std::optional<HubId> id = HubIdOfSnapshot(directory.string());
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": is a symbolic link to a file that does not exist",
        id ? absl::StrCat("; complete the download with: ", id->DownloadCommand()) : ""));
  }
  if (!folder.empty() && absl::StartsWith(target.string(), folder + "/")) return target.string();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": is a symbolic link",
      folder.empty() ? "" : " that leaves the repository's folder of the Hugging Face cache",
      "; use a copy of the file, or --follow-symlinks"));
}

absl::Status CheckLinks(const std::string& directory) {
  for (const std::string& name : EntryNames(directory)) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (IsModelFile(name)) {
      QT_RETURN_IF_ERROR(ResolveLink(path).status());
    } else if (IsDirectory(path)) {
      for (const std::string& inner : EntryNames(path)) {
        if (!IsModelFile(inner)) continue;
        QT_RETURN_IF_ERROR(ResolveLink(absl::StrCat(path, "/", inner)).status());
      }
    }
  }
  return absl::OkStatus();
}

ModelFormat ModelFormatOf(const std::string& model) {
  if (absl::EndsWith(model, ".gguf") && !IsDirectory(model)) return ModelFormat::kGguf;
  if (absl::EndsWith(model, ".safetensors") && !IsDirectory(model)) {
    return ModelFormat::kTextEncoderFile;
  }
  return ModelFormat::kDirectory;
}

absl::StatusOr<std::string> FindModel(const std::string& model, bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(std::string found, Located(model));
  if (!IsDirectory(found)) {
    if (!IsModelOfOneFile(found)) return absl::InvalidArgumentError(ExplainFile(found));
    if (!follow_symlinks) QT_RETURN_IF_ERROR(ResolveLink(found).status());
    return found;
  }
  if (!follow_symlinks) QT_RETURN_IF_ERROR(CheckLinks(found));
  QT_ASSIGN_OR_RETURN(found, FindTextEncoder(found));
  QT_RETURN_IF_ERROR(CheckModelFiles(found));
  return found;
}

absl::StatusOr<std::string> FindTokenizer(const std::string& tokenizer, const std::string& model,
                                          bool follow_symlinks) {
  std::string found = TokenizerBeside(model);
  if (!tokenizer.empty()) {
    QT_ASSIGN_OR_RETURN(found, Located(tokenizer));
  }
  if (follow_symlinks) return found;
  if (IsDirectory(found)) {
    QT_RETURN_IF_ERROR(CheckLinks(found));
  } else {
    QT_RETURN_IF_ERROR(ResolveLink(found).status());
  }
  return found;
}

}  // namespace quintet
