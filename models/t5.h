// The T5 family's forward pass (Raffel et al. 2020): T5, v1.1, Flan, mT5, UMT5, ByT5 and FAT5,
// whose position encodings (ALiBi, FIRE, rotary with xPos) are the only difference that reaches
// this far.
#pragma once

#include <memory>

#include "models/model.h"
#include "models/weights.h"

namespace quintet {

// `config` is validated; `weights` belong to it and lie where `stream` runs. RESOURCE_EXHAUSTED when the workspace for
// `limits` cannot be had.
absl::StatusOr<std::unique_ptr<Model>> NewT5Model(ModelConfig config, const ModelLimits& limits,
                                                  ModelWeights weights, const Stream& stream);

// The memory of such a model, from weights that are only described.
absl::StatusOr<ModelMemory> MeasureT5Model(ModelConfig config, const ModelLimits& limits,
                                           ModelWeights weights, const Stream& stream);

}  // namespace quintet
