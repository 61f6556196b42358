// The T5 family's forward pass (Raffel et al. 2020): T5, v1.1, Flan, mT5, UMT5, ByT5 and FAT5,
// whose position encodings (ALiBi, FIRE, rotary with xPos) are the only difference that reaches
// this far.
#pragma once

#include <memory>

#include "models/packed_model.h"

namespace quintet {

// `config` is validated; `weights`, which may be only described (then the model can only be
// measured), belong to it and lie where `stream` runs.
std::unique_ptr<PackedModel> MakeT5Model(ModelConfig config, const ModelLimits& limits,
                                         ModelWeights weights, const Stream& stream);

}  // namespace quintet
