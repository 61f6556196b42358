// The config.json of weights that come without one: text encoders in one file, and GGUF files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "models/checkpoint/weight_files.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Returns the fields of config.json for a T5 or UMT5 with these weights. Sizes come from the
// tensors: vocab_size and d_model from the embedding, d_ff from the feed-forward layer, num_heads
// and the number of buckets from the position bias, d_kv from the query projection. num_layers
// comes from their names. A model whose second encoder layer has a position bias of its own is a
// UMT5, others are T5. A gated feed-forward layer means gated-gelu, an ungated one relu. Without
// decoder tensors the class is an encoder model. Other fields are those that the files state
// (WeightFiles::ConfigFields). Returns INVALID_ARGUMENT if a tensor is missing or has an impossible
// shape, or the files state another size than the tensors have; the message begins with `where`.
absl::StatusOr<nlohmann::json> DeriveConfig(const WeightFiles& files, const std::string& where);

// Returns the unchecked fields of config.json. `model` is a directory or a file that FindModel has
// returned; for a file, DeriveConfig derives the fields from its tensors.
absl::StatusOr<nlohmann::json> ReadConfigFile(const std::string& model);

}  // namespace quintet
