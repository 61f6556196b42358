// Reads and writes safetensors files: an 8-byte little-endian header length, a JSON header, then
// the tensors' bytes without gaps (https://github.com/huggingface/safetensors). Files are untrusted
// and may be truncated while they are read: data is read with pread, so truncation is an error, not
// a SIGBUS.
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
#include "kernels/base/tensor.h"

namespace quintet {

// Element types of tensors in safetensors files. All are little-endian.
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
const char* StoredTypeName(StoredType type);  // as in file headers: "F32", "BF16", ...
int64_t StoredTypeBytes(StoredType type);
std::optional<DType> ToDType(StoredType type);  // nullopt: no kernel supports the type
StoredType ToStoredType(DType type);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // at most 8 dimensions; element and byte counts fit int64
  int64_t bytes = 0;
  int64_t offset_bytes = 0;  // from the start of the file, header included
  int file = 0;              // index of the file in the reader
};

// Dtype and shape of a tensor for messages: "BF16 [32, 64]".
std::string Describe(StoredType type, const std::vector<int64_t>& shape);
// Returns a name that was read from a file, such as a tensor name, in a form that is safe to print:
// escaped, at most 200 bytes.
std::string Printable(std::string_view name);

// Whether a name that was read from a file is a plain file name: not hidden, without '/' and NUL,
// at most 255 bytes. Such a name cannot refer to a file outside its directory.
bool IsPlainFileName(const std::string& name);

// The open files of a checkpoint. Immutable after Open and thread safe.
class SafetensorsReader {
 public:
  // Opens directory/model.safetensors, or the shards of directory/model.safetensors.index.json, and
  // checks their headers: length <= 100,000,000 bytes and within the file, a JSON object, nesting
  // depth <= 8, no duplicate keys, <= 100,000 tensors, known dtypes, tensor sizes that fit 64 bits,
  // and offsets that cover the data without gaps. Shard names must be plain file names. A symbolic
  // link is refused unless `follow_symlinks` is true or the link stays within a repository's folder
  // of a hub cache (ResolveLink). If the directory has no weights, returns the error of
  // ExplainNoWeights. Messages of INVALID_ARGUMENT give the file, the tensor, the expected value
  // and the actual one.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& directory,
                                                bool follow_symlinks = false);
  // Opens a single safetensors file. Checks it like Open does.
  static absl::StatusOr<SafetensorsReader> OpenFile(const std::string& path,
                                                    bool follow_symlinks = false);

  SafetensorsReader(SafetensorsReader&&) = default;
  SafetensorsReader& operator=(SafetensorsReader&&) = default;

  // All tensors, ordered by the name of their file and, within a file, by their offset.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;  // null if there is none
  // The "__metadata__" object of the file, or of the first shard.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies `bytes` bytes of the tensor, starting at its byte `begin_bytes`, to `destination`.
  // INVALID_ARGUMENT if the file has become shorter.
  absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                    void* destination) const;
  // Reads all bytes of all weight files, headers included, and calls `take` for each block of bytes
  // that was read. The files are read in order of their names. Stops when `take` returns false.
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
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  std::map<std::string, std::string> metadata_;
};

struct TensorSpec {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
};

// Writes one safetensors file as a stream: the header, then every tensor's bytes in the order of
// the TensorSpecs. The output depends only on the arguments (same input, same SHA-256). The
// header is padded so that the first tensor starts at a multiple of 64 bytes. Not thread safe.
class SafetensorsWriter {
 public:
  // Creates the file `path`, which must not exist. INVALID_ARGUMENT unless the tensors' names are
  // unique and valid UTF-8.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<TensorSpec>& specs,
      const std::map<std::string, std::string>& metadata);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();  // closes the file; without Finish it is incomplete

  // Appends the next bytes of tensor data, in pieces of any size. RESOURCE_EXHAUSTED if the disk is
  // full. Aborts (QT_CHECK) if the total size of all tensors would be exceeded.
  absl::Status Append(const void* data, int64_t bytes);
  // Aborts (QT_CHECK) unless all bytes of all tensors were appended. Then flushes the file to disk
  // (fsync) and closes it.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;

  std::string name_;  // last path component, for messages
  int descriptor_ = -1;
  int64_t remaining_bytes_ = 0;
};

}  // namespace quintet
