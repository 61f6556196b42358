#include "models/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors_header.h"

namespace quintet {
namespace {

constexpr int64_t kMaxHeaderBytes = 100000000;
constexpr int64_t kMaxIndexBytes = 16 << 20;
constexpr size_t kMaxShards = 1024;

struct TypeRow {
  const char* name;
  int64_t bytes;
};
// Name and bytes per value of each StoredType, in the order of the enum.
constexpr TypeRow kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                              {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                              {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

absl::Status ReadAll(int descriptor, const std::string& name, int64_t offset, int64_t bytes,
                     void* destination) {
  char* out = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor, out, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": cannot be read: ", std::strerror(errno)));
    }
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the file is truncated at byte ",
                                                     offset, ", ", bytes, " bytes are missing"));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  struct stat unused;
  return lstat(path.c_str(), &unused) == 0;
}

absl::StatusOr<int> OpenWeightFile(const std::string& path, const std::string& where,
                                   bool follow_symlinks) {
  std::string target = path;
  if (!follow_symlinks) {
    QT_ASSIGN_OR_RETURN(target, ResolveLink(path));
  }
  // O_NONBLOCK: if the file is a FIFO, open must not wait for a writer. O_NOFOLLOW: open fails if
  // the file has been replaced by a symbolic link since ResolveLink checked it.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_symlinks ? 0 : O_NOFOLLOW);
  const int descriptor = open(target.c_str(), flags);
  if (descriptor >= 0) return descriptor;
  if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(where, ": no such file"));
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": cannot be opened: ", std::strerror(errno)));
}

// Reads a safetensors file's JSON header: eight bytes for its length (little-endian), then the
// text.
absl::StatusOr<std::string> ReadHeader(int descriptor, const std::string& where,
                                       int64_t file_bytes) {
  if (file_bytes < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected at least 8 bytes, got ", file_bytes));
  }
  unsigned char length_bytes[8];
  QT_RETURN_IF_ERROR(ReadAll(descriptor, where, 0, 8, length_bytes));
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
  QT_RETURN_IF_ERROR(
      ReadAll(descriptor, where, 8, static_cast<int64_t>(header_bytes), json.data()));
  return json;
}

}  // namespace

const char* StoredTypeName(StoredType type) { return kTypes[static_cast<int>(type)].name; }
int64_t StoredTypeBytes(StoredType type) { return kTypes[static_cast<int>(type)].bytes; }

std::optional<DType> ToDType(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kBF16:
      return DType::kBF16;
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kI8:
      return DType::kI8;
    case StoredType::kF8E4M3:
      return DType::kF8;
    case StoredType::kI32:
      return DType::kI32;
    case StoredType::kI64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

StoredType ToStoredType(DType type) {
  switch (type) {
    case DType::kF32:
      return StoredType::kF32;
    case DType::kBF16:
      return StoredType::kBF16;
    case DType::kF16:
      return StoredType::kF16;
    case DType::kI8:
      return StoredType::kI8;
    case DType::kF8:
      return StoredType::kF8E4M3;
    case DType::kI32:
      return StoredType::kI32;
    case DType::kI64:
      return StoredType::kI64;
  }
  return StoredType::kF32;
}

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string Describe(StoredType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(StoredTypeName(type), " [", absl::StrJoin(shape, ", "), "]");
}

std::string Printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  const absl::string_view cut(name.data(), std::min(name.size(), kLongest));
  return absl::StrCat(absl::CHexEscape(cut), name.size() > kLongest ? "..." : "");
}

SafetensorsReader::File& SafetensorsReader::File::operator=(File&& other) noexcept {
  std::swap(name, other.name);
  std::swap(descriptor, other.descriptor);
  return *this;
}

SafetensorsReader::File::~File() {
  if (descriptor >= 0) close(descriptor);
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& directory,
                                                          bool follow_symlinks) {
  SafetensorsReader reader;
  if (Exists(directory + "/model.safetensors")) {
    QT_RETURN_IF_ERROR(
        reader.AddFile(directory + "/model.safetensors", "model.safetensors", follow_symlinks));
    QT_RETURN_IF_ERROR(reader.IndexNames());
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
  QT_RETURN_IF_ERROR(reader.IndexNames());
  return reader;
}

absl::Status SafetensorsReader::AddFile(const std::string& path, const std::string& name,
                                        bool follow_symlinks) {
  const std::string where = Printable(name);
  File file;
  file.name = where;
  QT_ASSIGN_OR_RETURN(file.descriptor, OpenWeightFile(path, where, follow_symlinks));
  struct stat info;
  if (fstat(file.descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": is not a regular file"));
  }
  const int64_t file_bytes = info.st_size;
  QT_ASSIGN_OR_RETURN(std::string json, ReadHeader(file.descriptor, where, file_bytes));
  const int64_t data_begin = 8 + static_cast<int64_t>(json.size());
  QT_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(json, file_bytes - data_begin, where));

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

absl::Status SafetensorsReader::IndexNames() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const StoredTensor &a = tensors_[by_name_[i - 1]], &b = tensors_[by_name_[i]];
    if (a.name != b.name) continue;
    const std::string& file_a = files_[static_cast<size_t>(a.file)].name;
    const std::string& file_b = files_[static_cast<size_t>(b.file)].name;
    return absl::InvalidArgumentError(
        absl::StrCat(file_a, ": tensor ", Printable(a.name), " appears twice",
                     a.file == b.file ? "" : absl::StrCat(", here and in ", file_b)));
  }
  return absl::OkStatus();
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
  QT_RETURN_IF_ERROR(IndexNames());
  for (const auto& [tensor, shard] : weight_map.items()) {
    const StoredTensor* stored = Find(tensor);
    const std::string expected = Printable(shard.get_ref<const std::string&>());
    if (stored == nullptr || files_[static_cast<size_t>(stored->file)].name != expected) {
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

const StoredTensor* SafetensorsReader::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

absl::Status SafetensorsReader::Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                                     void* destination) const {
  QT_CHECK(begin_bytes >= 0 && bytes >= 0 && begin_bytes <= tensor.bytes - bytes);
  const File& file = files_[static_cast<size_t>(tensor.file)];
  return ReadAll(file.descriptor, file.name, tensor.offset_bytes + begin_bytes, bytes, destination);
}

absl::Status SafetensorsReader::ReadFiles(
    absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const {
  std::vector<char> block(1 << 18);
  for (const File& file : files_) {
    struct stat info;
    if (fstat(file.descriptor, &info) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(file.name, ": cannot be read"));
    }
    for (int64_t at = 0; at < info.st_size;) {
      const int64_t bytes =
          std::min<int64_t>(info.st_size - at, static_cast<int64_t>(block.size()));
      QT_RETURN_IF_ERROR(ReadAll(file.descriptor, file.name, at, bytes, block.data()));
      if (!take(block.data(), bytes)) return absl::OkStatus();
      at += bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace quintet
