// LoRA adapters (Hu et al. 2021): for a linear module y = x W^T, the factors A [rank, columns] and
// B [rows, rank] of a correction, y = x W^T + scale * (x A^T) B^T. Reads them from files and maps
// them to Quintet's packed parameters.
//
// Two formats:
//   a directory of PEFT: adapter_config.json (adapter_config.h) and adapter_model.safetensors with
//     tensors base_model.model.MODULE.lora_A.weight [rank, columns], .lora_B.weight [rows, rank]
//     and, for heads in modules_to_save, base_model.model.MODULE.weight and .bias
//   a file of kohya's sd-scripts, for a T5 text encoder: tensors lora_te3_MODULE.lora_down.weight
//     [rank, columns], .lora_up.weight [rows, rank] and .alpha [], where MODULE is the module's
//     name with underscores instead of dots. scale = alpha / rank. Parts for other models of the
//     pipeline (lora_unet_*, CLIP) are skipped.
//
// Files are untrusted. Values are kept in f32 on the host. Immutable after reading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/linear_modules.h"
#include "models/config/config.h"

namespace quintet {

// The LoRA factors A and B of one linear module.
struct LoraFactors {
  LinearModule module;
  int64_t rank = 0;
  float scale = 1.0f;
  std::vector<float> a;  // [rank, module.columns]
  std::vector<float> b;  // [module.rows, rank]
};

// A task head's tensor in an adapter's file. It replaces the base model's tensor (modules_to_save).
struct SavedTensor {
  HeadTensor tensor;
  std::vector<float> values;
};

struct Adapter {
  std::vector<LoraFactors> factors;  // ordered by parameter and row
  std::vector<SavedTensor> saved;
  int64_t skipped = 0;  // tensors for other models, or of the base model, that are not read

  int64_t parameters() const;  // number of values
  int64_t bytes() const { return parameters() * int64_t{4}; }
  int64_t max_rank() const;
  // Whether the adapter changes a parameter (WeightSlot::name).
  bool Changes(const std::string& parameter) const;
};

// Reads an adapter for a model with this configuration. `path` is a directory of PEFT or a file of
// kohya's. Symbolic links are refused unless `follow_symlinks` is true or they stay within a
// repository's folder of a hub cache (ResolveLink). NOT_FOUND: no such adapter. INVALID_ARGUMENT
// lists all tensors that are missing, unexpected or of a wrong shape or dtype, or names a tensor
// with a NaN or an infinity. UNIMPLEMENTED: a kind of adapter that Quintet does not compute.
absl::StatusOr<Adapter> ReadAdapter(const std::string& path, const ModelConfig& config,
                                    bool follow_symlinks = false);

// Does what ReadAdapter does, but reads no values: all vectors of values are empty, and factors
// with an alpha in the file have the scale 1.
absl::StatusOr<Adapter> DescribeAdapter(const std::string& path, const ModelConfig& config,
                                        bool follow_symlinks = false);

}  // namespace quintet
