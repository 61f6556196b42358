// Reading and writing safetensors files: an 8-byte little-endian header length, a JSON header, then
// the tensors' bytes back to back (https://github.com/huggingface/safetensors). Every byte read is
// untrusted, and files may be cut while they are read: data comes by pread only, so that is an
// error and never a SIGBUS.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace quintet {

// The element types of the format; all are little-endian.
enum class StoredType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};
const char* StoredTypeName(StoredType type);  // as in headers: "F32", "BF16", ...
int64_t StoredTypeBytes(StoredType type);
std::optional<DType> ToDType(StoredType type);  // nullopt for types that the kernels do not know
StoredType ToStoredType(DType type);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // at most 8 dimensions; elements and bytes fit int64
  int64_t bytes = 0;
  int64_t offset_bytes = 0;  // in its file, header included
  int file = 0;              // which of the reader's files
};

// Shape and dtype of one tensor for messages: "BF16 [32, 64]".
std::string Describe(StoredType type, const std::vector<int64_t>& shape);
// A name from a file, made safe to print: escaped, cut at 200 bytes.
std::string Printable(std::string_view name);

// The open files of a checkpoint. Immutable after Open, thread safe.
class SafetensorsReader {
 public:
  // Opens directory/model.safetensors, or the shards of directory/model.safetensors.index.json, and
  // checks their headers: length
  // <= 100,000,000 and within the file, an object, depth <= 8, no key twice, <= 100,000 tensors,
  // known types, sizes that multiply without overflow, offsets contiguous from 0 to the end of the
  // file. Shards are named by plain file names. Symbolic links are refused unless
  // `follow_symlinks`. NOT_FOUND when there are no weights at all; INVALID_ARGUMENT says file,
  // tensor, expected and got.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& directory,
                                                bool follow_symlinks = false);
  // The same for one file.
  static absl::StatusOr<SafetensorsReader> OpenFile(const std::string& path,
                                                    bool follow_symlinks = false);

  SafetensorsReader(SafetensorsReader&&) = default;
  SafetensorsReader& operator=(SafetensorsReader&&) = default;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // by file, then offset
  const StoredTensor* Find(std::string_view name) const;                 // null when there is none
  // "__metadata__" of the file (of shards: the first one's).
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies `bytes` bytes that start `begin_bytes` into the tensor. INVALID_ARGUMENT when the file
  // has become shorter.
  absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                    void* destination) const;
  // All bytes of the files, in the order of their names, piece by piece, until `take` returns
  // false.
  absl::Status ReadFiles(absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const;

 private:
  struct File {
    std::string name;  // last path component
    int descriptor = -1;
    File() = default;
    File(File&& other) noexcept { *this = std::move(other); }
    File& operator=(File&& other) noexcept;
    ~File();
  };

  SafetensorsReader() = default;
  absl::Status AddFile(const std::string& path, const std::string& name, bool follow_symlinks);
  absl::Status AddShards(const std::string& directory, bool follow_symlinks);
  absl::Status IndexNames();

  std::vector<File> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<uint32_t> by_name_;  // indexes into tensors_, in order of name
  std::map<std::string, std::string> metadata_;
};

struct TensorSpec {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
};

// Writes one file as a stream: the header first, then every tensor's bytes in the order of the
// specs. The bytes depend on the arguments alone (same input, same SHA-256). Data starts at a
// multiple of 64 bytes. Not thread safe.
class SafetensorsWriter {
 public:
  // Creates `path`, which must not exist. Names are unique UTF-8 (INVALID_ARGUMENT otherwise).
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<TensorSpec>& specs,
      const std::map<std::string, std::string>& metadata);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();  // closes; a file that was not finished stays incomplete

  // The next bytes of data, in pieces of any size. RESOURCE_EXHAUSTED when the disk is full.
  // QT_CHECKs that the specs' total is not exceeded.
  absl::Status Append(const void* data, int64_t bytes);
  // Checks that every byte came (QT_CHECK), flushes to disk (fsync) and closes.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;

  std::string name_;  // last path component, for messages
  int descriptor_ = -1;
  int64_t remaining_bytes_ = 0;
};

}  // namespace quintet
