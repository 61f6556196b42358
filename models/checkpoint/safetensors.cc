#include "models/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors_header.h"

namespace quintet {
namespace {

constexpr int64_t kMaxHeaderBytes = 100000000;
constexpr int64_t kMaxIndexBytes = 16 << 20;
constexpr size_t kMaxShards = 1024;

bool Exists(const std::string& path) {
  struct stat unused;
  return lstat(path.c_str(), &unused) == 0;
}

// Reads a safetensors file's JSON header: eight bytes for its length (little-endian), then the
// text.
absl::StatusOr<std::string> ReadHeader(const CheckpointFile& file) {
  const std::string& where = file.name();
  const int64_t file_bytes = file.bytes();
  if (file_bytes < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected at least 8 bytes, got ", file_bytes));
  }
  unsigned char length_bytes[8];
  QT_RETURN_IF_ERROR(file.Read(0, 8, length_bytes));
  // A Git LFS pointer file (weights not downloaded) is a text that starts with "version ".
  if (std::memcmp(length_bytes, "version ", 8) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": is a Git LFS pointer, not the weights; fetch them with git lfs pull"));
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length_bytes[i];
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the header's length of ", header_bytes,
                                                   " bytes exceeds the limit of ",
                                                   kMaxHeaderBytes));
  }
  const int64_t end = 8 + static_cast<int64_t>(header_bytes);
  if (end > file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the header ends at byte ", end,
                                                   ", but the file ends at byte ", file_bytes));
  }
  std::string json(header_bytes, '\0');
  QT_RETURN_IF_ERROR(file.Read(8, static_cast<int64_t>(header_bytes), json.data()));
  return json;
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& directory,
                                                          bool follow_symlinks) {
  SafetensorsReader reader;
  if (Exists(directory + "/model.safetensors")) {
    QT_RETURN_IF_ERROR(
        reader.AddFile(directory + "/model.safetensors", "model.safetensors", follow_symlinks));
    QT_RETURN_IF_ERROR(reader.CheckNames());
  } else if (Exists(directory + "/model.safetensors.index.json")) {
    QT_RETURN_IF_ERROR(reader.AddShards(directory, follow_symlinks));
  } else {
    return ExplainNoWeights(directory);
  }
  return reader;
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::OpenFile(const std::string& path,
                                                              bool follow_symlinks) {
  SafetensorsReader reader;
  const std::string name = path.substr(path.rfind('/') + 1);
  QT_RETURN_IF_ERROR(reader.AddFile(path, name, follow_symlinks));
  QT_RETURN_IF_ERROR(reader.CheckNames());
  return reader;
}

absl::Status SafetensorsReader::AddFile(const std::string& path, const std::string& name,
                                        bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(CheckpointFile file,
                      CheckpointFile::Open(path, Printable(name), follow_symlinks));
  QT_ASSIGN_OR_RETURN(std::string json, ReadHeader(file));
  const int64_t data_begin = 8 + static_cast<int64_t>(json.size());
  QT_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(json, file.bytes() - data_begin, file.name()));

  for (StoredTensor& t : header.tensors) {
    t.offset_bytes += data_begin;
    t.file = static_cast<int>(files_.size());
  }
  if (files_.empty()) {
    metadata_ = std::move(header.metadata);
    tensors_ = std::move(header.tensors);
  } else {
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(tensors_));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status SafetensorsReader::CheckNames() {
  const auto twice = IndexNames();
  if (!twice) return absl::OkStatus();
  const auto& [a, b] = *twice;
  const std::string& file_a = files_[static_cast<size_t>(a->file)].name();
  const std::string& file_b = files_[static_cast<size_t>(b->file)].name();
  return absl::InvalidArgumentError(
      absl::StrCat(file_a, ": tensor ", Printable(a->name), " appears twice",
                   a->file == b->file ? "" : absl::StrCat(", here and in ", file_b)));
}

absl::Status SafetensorsReader::AddShards(const std::string& directory, bool follow_symlinks) {
  const std::string where = "model.safetensors.index.json";
  QT_ASSIGN_OR_RETURN(const nlohmann::json index,
                      ReadJsonFile(directory + "/" + where, kMaxIndexBytes, 8));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object weight_map"));
  }
  const nlohmann::json& weight_map = index["weight_map"];
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": weight_map of ", Printable(tensor), ": expected a file name"));
    }
    const std::string& name = shard.get_ref<const std::string&>();
    if (!IsPlainFileName(name) || !absl::EndsWith(name, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": weight_map of ", Printable(tensor),
                                                     ": expected a plain name *.safetensors, got ",
                                                     Printable(name)));
    }
    shards.insert(name);
  }
  if (shards.empty() || shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected 1 to ", kMaxShards, " shards, got ", shards.size()));
  }
  for (const std::string& name : shards) {
    QT_RETURN_IF_ERROR(AddFile(directory + "/" + name, name, follow_symlinks));
  }
  QT_RETURN_IF_ERROR(CheckNames());
  for (const auto& [tensor, shard] : weight_map.items()) {
    const StoredTensor* stored = Find(tensor);
    const std::string expected = Printable(shard.get_ref<const std::string&>());
    if (stored == nullptr || files_[static_cast<size_t>(stored->file)].name() != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": tensor ", Printable(tensor), " is not in ", expected));
    }
  }
  if (weight_map.size() != tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": weight_map names ", weight_map.size(),
                                                   " tensors, but the shards hold ",
                                                   tensors_.size()));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                                     void* destination) const {
  QT_CHECK(begin_bytes >= 0 && bytes >= 0 && begin_bytes <= tensor.bytes - bytes);
  return files_[static_cast<size_t>(tensor.file)].Read(tensor.offset_bytes + begin_bytes, bytes,
                                                       destination);
}

absl::Status SafetensorsReader::ReadFiles(
    absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const {
  bool go_on = true;
  for (const CheckpointFile& file : files_) {
    QT_RETURN_IF_ERROR(file.ReadAll(take, &go_on));
    if (!go_on) break;
  }
  return absl::OkStatus();
}

}  // namespace quintet
