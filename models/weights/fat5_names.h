// Maps tensor names and config.json between Hugging Face's T5 checkpoints and FAT5's (public
// repository catie-aq/flashT5, convert_huggingface_t5.py). Only the converter uses this; the loader
// supports both families directly.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/config/config.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Name of a tensor in the other family. Empty for tensors that are not converted: aliases of the
// embedding, and the cross-attention bias of old T5 files, which no model reads. INVALID_ARGUMENT
// for names that the family does not have.
absl::StatusOr<std::string> Fat5NameOfT5(const std::string& name);
// `head` determines whether T5's names have the prefix "transformer.".
absl::StatusOr<std::string> T5NameOfFat5(const std::string& name, Head head);

// Checks that a model can be expressed in the other family. UNIMPLEMENTED gives the reason (UMT5's
// bias in every layer, an activation that FAT5 lacks, position encodings that T5 lacks, heads that
// use another stack).
absl::Status CheckExpressibleAsFat5(const ModelConfig& config);
absl::Status CheckExpressibleAsT5(const ModelConfig& config);

// The config.json of the other family. `source` is the parsed file from which `config` was read.
// `tied`: the T5 model has no lm_head.weight and scales its logits by d_model^-0.5.
nlohmann::json Fat5ConfigOfT5(const nlohmann::json& source, const ModelConfig& config);
nlohmann::json T5ConfigOfFat5(const nlohmann::json& source, const ModelConfig& config, bool tied);

}  // namespace quintet
