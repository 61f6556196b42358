// Finds the files of a model from what a user writes: a directory, a file, or the id of a Hugging
// Face repository that is in the local cache. Nothing is downloaded.
#pragma once

#include <cstdint>
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

// Parses a hub id: NAME or ORGANIZATION/NAME, optionally followed by '@' and a revision. NAME and
// ORGANIZATION have at most 96 letters, digits, '-', '_' and '.', under the rules of
// huggingface_hub. nullopt if `text` is not a hub id.
std::optional<HubId> ParseHubId(std::string_view text);

// Returns the directory of huggingface_hub's cache: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else
// HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Empty
// environment variables count as unset. A leading ~ and $NAME in a value are replaced.
std::string HubCacheDirectory();

// Returns the repository of a snapshot in a hub cache, given the snapshot's directory
// (.../models--ORGANIZATION--NAME/snapshots/COMMIT). nullopt if the directory is not in a hub
// cache.
std::optional<HubId> HubIdOfSnapshot(const std::string& directory);

enum class ModelFormat : uint8_t {
  kDirectory,        // config.json and safetensors files; also all other files
  kTextEncoderFile,  // one safetensors file without config.json (TextEncoderFile)
  kGguf,             // GgufReader
};
// Returns the format of `model`, a path that FindModel has returned, judging by its file name.
ModelFormat ModelFormatOf(const std::string& model);

// Returns the directory or file that `model` names. An existing directory is returned as it is,
// except for a diffusers pipeline: the result is then the folder of its only T5 text encoder
// (pipeline_directory.h). A file must be a safetensors file of a text encoder or a GGUF file.
// Otherwise `model` is a hub id and is looked up in HubCacheDirectory(); its revision must be a
// file under refs/ (branch, tag) or a directory under snapshots/ (commit). Also checks that the
// model can be read: CheckLinks (unless `follow_symlinks`) and CheckModelFiles
// (models/checkpoint/foreign_files.h).
// Returns NOT_FOUND if there is no such directory and no such cached model; for a hub id the
// message contains the command that downloads it.
// Returns INVALID_ARGUMENT if `model` is another file or a directory that is not a readable model.
absl::StatusOr<std::string> FindModel(const std::string& model, bool follow_symlinks = false);

// Returns the directory or file with the tokenizer of a model that FindModel has found. `tokenizer`
// is the user's choice: a directory, a tokenizer file, a file with an embedded tokenizer, or a hub
// id. If it is empty, the result is the model itself or, for a text encoder of a diffusers
// pipeline, the tokenizer's folder in the pipeline. Checks symbolic links as FindModel does.
absl::StatusOr<std::string> FindTokenizer(const std::string& tokenizer, const std::string& model,
                                          bool follow_symlinks = false);

// Returns the target of the symbolic link `path`. Only one kind of link is accepted: a link in a
// repository's folder (models--*) of a hub cache to a file in the same folder. Returns
// INVALID_ARGUMENT for all other links, and for links whose target does not exist. A path that is
// not a link is returned unchanged.
absl::StatusOr<std::string> ResolveLink(const std::string& path);

// Calls ResolveLink for the model files of a directory and of its direct sub-directories, and
// returns the first error. Model files are those named *.json, *.safetensors, *.model or *.txt.
absl::Status CheckLinks(const std::string& directory);

}  // namespace quintet
