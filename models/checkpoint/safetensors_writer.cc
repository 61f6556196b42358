#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checked_math.h"
#include "models/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace quintet {
namespace {

absl::Status WriteAll(int descriptor, const std::string& name, const void* data, int64_t bytes) {
  const char* in = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(descriptor, in, static_cast<size_t>(bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return errno == ENOSPC || errno == EDQUOT || errno == EFBIG
                 ? absl::ResourceExhaustedError(
                       absl::StrCat(name, ": no space for ", bytes, " bytes"))
                 : absl::InternalError(absl::StrCat(name, ": cannot be written"));
    }
    in += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

// Returns `text` as a quoted JSON string, or nullopt if it is not valid UTF-8. nlohmann throws an
// exception for invalid UTF-8; it is caught here.
std::optional<std::string> Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// Returns the file's header: eight bytes for its length, then JSON. Sets *data_bytes to the total
// size of all tensors.
absl::StatusOr<std::string> BuildHeader(const std::vector<TensorSpec>& specs,
                                        const std::map<std::string, std::string>& metadata,
                                        int64_t* data_bytes) {
  std::vector<std::string> entries;
  std::set<std::string> names = {"__metadata__"};
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) {
      const auto quoted_key = Quoted(key), quoted_value = Quoted(value);
      if (!quoted_key || !quoted_value) {
        return absl::InvalidArgumentError("metadata is not valid UTF-8");
      }
      pairs.push_back(absl::StrCat(*quoted_key, ":", *quoted_value));
    }
    entries.push_back(absl::StrCat("\"__metadata__\":{", absl::StrJoin(pairs, ","), "}"));
  }
  int64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    const auto quoted = Quoted(spec.name);
    if (!quoted || !names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Printable(spec.name), ": names must be unique and valid UTF-8"));
    }
    const auto bytes = CheckedProduct(StoredTypeBytes(spec.type), spec.shape);
    const auto end = bytes ? CheckedAdd(offset, *bytes) : std::nullopt;
    if (!end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Printable(spec.name), ": ", Describe(spec.type, spec.shape), " is too large"));
    }
    entries.push_back(absl::StrCat(*quoted, ":{\"dtype\":\"", StoredTypeName(spec.type),
                                   "\",\"shape\":[", absl::StrJoin(spec.shape, ","),
                                   "],\"data_offsets\":[", offset, ",", *end, "]}"));
    offset = *end;
  }
  *data_bytes = offset;
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  while ((header.size() + 8) % 64 != 0) header += ' ';
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header;
}

}  // namespace

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(remaining_bytes_, other.remaining_bytes_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& specs,
    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.name_ = Printable(path.substr(path.rfind('/') + 1));
  QT_ASSIGN_OR_RETURN(const std::string header,
                      BuildHeader(specs, metadata, &writer.remaining_bytes_));
  writer.descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (writer.descriptor_ < 0) {
    return errno == EEXIST
               ? absl::AlreadyExistsError(absl::StrCat(writer.name_, ": exists already"))
               : absl::PermissionDeniedError(absl::StrCat(writer.name_, ": cannot be created"));
  }
  QT_RETURN_IF_ERROR(WriteAll(writer.descriptor_, writer.name_, header.data(),
                              static_cast<int64_t>(header.size())));
  return writer;
}

absl::Status SafetensorsWriter::Append(const void* data, int64_t bytes) {
  QT_CHECK_LE(bytes, remaining_bytes_);
  remaining_bytes_ -= bytes;
  return WriteAll(descriptor_, name_, data, bytes);
}

absl::Status SafetensorsWriter::Finish() {
  QT_CHECK_EQ(remaining_bytes_, 0);
  const bool flushed = fsync(descriptor_) == 0;
  const bool closed = close(descriptor_) == 0;
  descriptor_ = -1;
  if (!flushed || !closed)
    return absl::InternalError(absl::StrCat(name_, ": cannot be written to disk"));
  return absl::OkStatus();
}

}  // namespace quintet
