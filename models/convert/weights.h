// Writes converted weights to model.safetensors, one tensor after another. There is one function
// for each conversion format.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/sha256.h"
#include "models/config/config.h"
#include "models/convert/convert.h"

namespace quintet {

// A safetensors file whose SHA-256 is computed while it is written.
class WeightsWriter {
 public:
  static absl::StatusOr<WeightsWriter> Create(const std::string& path,
                                              const std::vector<TensorSpec>& specs,
                                              std::function<bool(int64_t, int64_t)> progress);
  // Appends the next bytes of tensor data. Returns CANCELLED if `progress` returns false.
  absl::Status Append(const void* data, int64_t bytes);
  absl::StatusOr<ConvertResult> Finish();

 private:
  explicit WeightsWriter(SafetensorsWriter file) : file_(std::move(file)) {}

  SafetensorsWriter file_;
  Sha256 hash_;
  std::function<bool(int64_t, int64_t)> progress_;
  ConvertResult result_;
  int64_t total_bytes_ = 0;
};

// Converts n f32 values to a float dtype. Returns INVALID_ARGUMENT, naming `tensor`, if a value is
// NaN, infinite or too large for f16.
absl::Status Encode(const float* values, int64_t n, DType type, const std::string& tensor,
                    void* encoded);

// Writes the weights in the packed format (models/weights/table.h) to the file `path`, with
// options.adapter merged into them. Also sets config->scale_logits. A head that was the embedding
// (tied) becomes a tensor of its own if the adapter changes it. Returns FAILED_PRECONDITION if the
// adapter changes a matrix that the source stores as int8 or fp8.
absl::StatusOr<ConvertResult> WritePackedWeights(const WeightFiles& files, ModelConfig* config,
                                                 const ConvertOptions& options,
                                                 const std::string& path);

struct RenamedWeights {
  ConvertResult written;
  // True if the model was converted to T5 and lm_head.weight was omitted: its language-model head
  // is the embedding (tied), and its logits are scaled by d_model^-0.5.
  bool tied = false;
};
// Writes a T5 model as FAT5 or a FAT5 model as T5: the same tensors under other names. FAT5 has no
// logit scale, so a conversion to FAT5 multiplies it into lm_head. T5 has no attention scale, so a
// conversion to T5 multiplies it into the query projections. A scaled tensor whose factor is not a
// power of two is stored as f32 unless options.dtype is set.
absl::StatusOr<RenamedWeights> WriteRenamedWeights(const WeightFiles& files, ModelConfig* config,
                                                   const ConvertOptions& options,
                                                   const std::string& path);

}  // namespace quintet
