// The correspondence of Hugging Face's T5 checkpoints and FAT5's (public repository
// catie-aq/flashT5, convert_huggingface_t5.py): tensor names and config.json. The converter and
// nothing else uses it; loading knows both families by themselves.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/config.h"
#include "nlohmann/json.hpp"

namespace quintet {

// The other family's name of one tensor. Empty for tensors that do not travel: second names of the
// embedding, and the cross-attention bias of old T5 files, which no model reads. INVALID_ARGUMENT
// for names that the family has not.
absl::StatusOr<std::string> Fat5NameOfT5(const std::string& name);
// `head` decides on T5's "transformer." prefix.
absl::StatusOr<std::string> T5NameOfFat5(const std::string& name, Head head);

// Whether a model can be expressed in the other family: UNIMPLEMENTED says why not (UMT5's bias in
// every layer, an activation that FAT5 lacks, position encodings that T5 lacks, heads that run
// other stacks).
absl::Status CheckExpressibleAsFat5(const ModelConfig& config);
absl::Status CheckExpressibleAsT5(const ModelConfig& config);

// The other family's config.json of `source`, which is the parsed file that `config` came from.
// `tied` : the T5 model has no lm_head.weight and scales its logits by d_model^-0.5.
nlohmann::json Fat5ConfigOfT5(const nlohmann::json& source, const ModelConfig& config);
nlohmann::json T5ConfigOfFat5(const nlohmann::json& source, const ModelConfig& config, bool tied);

}  // namespace quintet
