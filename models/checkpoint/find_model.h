// Finds the directory of a model from what a user writes: a directory, or the id of a Hugging Face
// repository that is in the local cache. Nothing is downloaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quintet {

// A Hugging Face repository, optionally at a branch, tag or commit: "google/flan-t5-base",
// "google-t5/t5-small@main".
struct HubId {
  std::string repository;
  std::string revision;  // empty: main

  // The command that downloads the repository: "hf download google-t5/t5-small".
  std::string DownloadCommand() const;
};

// nullopt unless `text` has the form of a hub id: NAME or ORGANIZATION/NAME of at most 96 letters,
// digits, '-', '_' and '.', as huggingface_hub demands, then optionally '@' and a revision.
std::optional<HubId> ParseHubId(std::string_view text);

// The directory of huggingface_hub's cache: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else
// HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Empty variables
// count as unset; a leading ~ and $NAME are replaced.
std::string HubCacheDirectory();

// The repository whose snapshot `directory` is (.../models--ORGANIZATION--NAME/snapshots/COMMIT).
// nullopt if it is not in a hub cache.
std::optional<HubId> HubIdOfSnapshot(const std::string& directory);

// The directory that `model` names. An existing directory is returned as it is; otherwise a hub id
// is looked up in HubCacheDirectory(): its revision is a file under refs/ or a commit under
// snapshots/. Also checks that the directory's files can be read as a model: CheckLinks (unless
// `follow_symlinks`) and CheckModelFiles (models/checkpoint/foreign_files.h).
// NOT_FOUND: neither exists; the message has the line that downloads the repository.
// INVALID_ARGUMENT: `model` is a file, or its directory cannot be read as a model.
absl::StatusOr<std::string> FindModel(const std::string& model, bool follow_symlinks = false);

// Where the symbolic link `path` leads, if its target may be read as a file of its directory: in a
// hub cache, links within the repository's folder (models--*). INVALID_ARGUMENT for other links and
// for links whose target does not exist. A path that is not a link is returned unchanged.
absl::StatusOr<std::string> ResolveLink(const std::string& path);

// ResolveLink for every entry of the directory that has the name of a model file (*.json,
// *.safetensors, *.model, *.txt), and for those of its sub-directories.
absl::Status CheckLinks(const std::string& directory);

}  // namespace quintet
