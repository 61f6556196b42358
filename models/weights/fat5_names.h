// Maps tensor names and config.json between Hugging Face's T5 checkpoints and FAT5's (public
// repository catie-aq/flashT5, convert_huggingface_t5.py). Only the converter uses this; the loader
// supports both families directly.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/config/config.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Fat5NameOfT5 returns the name in FAT5 of a T5 tensor; T5NameOfFat5 does the reverse. Empty for
// tensors that are not converted: aliases of the embedding, and the cross-attention bias of old T5
// files, which no model reads. INVALID_ARGUMENT for names that the source family does not have.
absl::StatusOr<std::string> Fat5NameOfT5(const std::string& name);
// `head` is needed because T5's names have the prefix "transformer." in token classification, and
// only there.
absl::StatusOr<std::string> T5NameOfFat5(const std::string& name, Head head);

// Checks that a T5 model can be expressed as FAT5, or a FAT5 model as T5. UNIMPLEMENTED gives the
// reason: UMT5's position bias in every layer, an activation that FAT5 lacks, a position encoding
// that T5 lacks, or a task head that uses the decoder in T5 but the encoder in FAT5.
absl::Status CheckExpressibleAsFat5(const ModelConfig& config);
absl::Status CheckExpressibleAsT5(const ModelConfig& config);

// Returns the config.json of the converted model. `source` is the parsed config.json from which
// `config` was read. `tied`: the T5 model gets no lm_head.weight; its head is the embedding, and
// its logits are scaled by d_model^-0.5.
nlohmann::json Fat5ConfigOfT5(const nlohmann::json& source, const ModelConfig& config);
nlohmann::json T5ConfigOfFat5(const nlohmann::json& source, const ModelConfig& config, bool tied);

}  // namespace quintet
