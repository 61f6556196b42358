// Matches the tensors of an adapter's file with the linear modules of a model (adapter.h describes
// both formats). Reads headers only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/linear_modules.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {

// The tensors of one module; shapes and dtypes are checked.
struct FactorTensors {
  const LinearModule* module = nullptr;
  const StoredTensor* a = nullptr;      // [rank, columns]
  const StoredTensor* b = nullptr;      // [rows, rank]
  const StoredTensor* alpha = nullptr;  // kohya: [] or [1], or null: alpha = rank
  int64_t rank = 0;
  float scale = 1.0f;  // if alpha is null
};

struct AdapterTensors {
  std::vector<FactorTensors> factors;                                    // in the table's order
  std::vector<std::pair<const HeadTensor*, const StoredTensor*>> saved;  // modules_to_save
  int64_t skipped = 0;  // tensors that need not be read
};

// The results point into `file` and `modules`. INVALID_ARGUMENT lists all tensors that are missing,
// unexpected or wrong; UNIMPLEMENTED names tensors of a kind that is not supported.
absl::StatusOr<AdapterTensors> MatchPeftTensors(const SafetensorsReader& file,
                                                const AdapterConfig& config,
                                                const ModuleTable& modules);
absl::StatusOr<AdapterTensors> MatchKohyaTensors(const SafetensorsReader& file,
                                                 const ModuleTable& modules);

}  // namespace quintet
