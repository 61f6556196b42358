// Weights of a conversion: what each form holds, and its streaming to model.safetensors.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "models/config.h"
#include "models/convert.h"
#include "models/safetensors.h"
#include "models/sha256.h"

namespace quintet {

// A safetensors file that is hashed while it is written.
class WeightsWriter {
 public:
  static absl::StatusOr<WeightsWriter> Create(const std::string& path,
                                              const std::vector<TensorSpec>& specs,
                                              std::function<bool(int64_t, int64_t)> progress);
  // CANCELLED when `progress` answers false.
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

// n f32 values as a float type. INVALID_ARGUMENT, naming `tensor`, when a value is too large for
// it.
absl::Status Encode(const float* values, int64_t n, DType type, const std::string& tensor,
                    void* encoded);

// Writes path. Settles config->scale_logits.
absl::StatusOr<ConvertResult> WritePackedWeights(const SafetensorsReader& files,
                                                 ModelConfig* config, const ConvertOptions& options,
                                                 const std::string& path);

struct RenamedWeights {
  ConvertResult written;
  bool tied = false;  // T5 without lm_head.weight, whose logits are scaled by d_model^-0.5
};
// T5 as FAT5 and FAT5 as T5: the same tensors by other names, with scales of logits (to FAT5) and
// of attention (to T5) multiplied into lm_head and the query projections. A scaled tensor whose
// factor is no power of two is stored as f32 unless options.dtype says otherwise.
absl::StatusOr<RenamedWeights> WriteRenamedWeights(const SafetensorsReader& files,
                                                   ModelConfig* config,
                                                   const ConvertOptions& options,
                                                   const std::string& path);

}  // namespace quintet
