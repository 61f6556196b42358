// Reads and writes safetensors files: an 8-byte little-endian header length, a JSON header, then
// the tensors' bytes without gaps (https://github.com/huggingface/safetensors).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {

// The open safetensors files of a checkpoint.
class SafetensorsReader : public WeightFiles {
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

  // The "__metadata__" object of the file, or of the first shard.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                    void* destination) const override;
  absl::Status ReadFiles(
      absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const override;

 private:
  SafetensorsReader() = default;
  absl::Status AddFile(const std::string& path, const std::string& name, bool follow_symlinks);
  absl::Status AddShards(const std::string& directory, bool follow_symlinks);
  absl::Status CheckNames();

  std::vector<CheckpointFile> files_;
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
  // Creates the file `path`, which must not exist. Returns INVALID_ARGUMENT unless the tensors'
  // names are unique and valid UTF-8.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<TensorSpec>& specs,
      const std::map<std::string, std::string>& metadata);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();  // closes the file; without Finish it is incomplete

  // Appends the next bytes of tensor data, in pieces of any size. Returns RESOURCE_EXHAUSTED if the
  // disk is full. Aborts (QT_CHECK) if the total size of all tensors would be exceeded.
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
