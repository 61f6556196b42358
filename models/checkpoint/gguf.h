// Reads T5 models in GGUF files, as llama.cpp writes them: architectures t5 and t5encoder. Values
// in block formats are decoded as they are read, see gguf_blocks.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/gguf_blocks.h"
#include "models/checkpoint/gguf_header.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {

class GgufReader : public WeightFiles {
 public:
  // Opens a file and checks its header (GgufHeader::Read), that tensors lie within the file without
  // overlap and are aligned, and that their rows are whole blocks. Returns UNIMPLEMENTED for
  // another architecture or an unsupported block format. The other errors are those of
  // CheckpointFile::Open and GgufHeader::Read.
  static absl::StatusOr<GgufReader> Open(const std::string& path, bool follow_symlinks = false);

  absl::Status Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                    void* destination) const override;
  absl::Status ReadFiles(
      absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const override;
  nlohmann::json ConfigFields() const override;

  const GgufHeader& header() const { return *header_; }
  const std::string& name() const { return file_->name(); }  // last path component, printable

 private:
  GgufReader() = default;
  absl::Status AddTensors();
  absl::Status AddTensor(const GgufTensor& tensor);
  absl::Status CheckOverlap() const;
  absl::Status Decode(const GgufEncoding& encoding, int64_t offset, int64_t begin, int64_t count,
                      float* values) const;

  std::unique_ptr<const CheckpointFile> file_;  // header_ points to it
  std::unique_ptr<const GgufHeader> header_;
  std::vector<const GgufEncoding*> encodings_;  // [tensors]
  std::vector<int64_t> stored_bytes_;           // [tensors], bytes in the file
};

}  // namespace quintet
