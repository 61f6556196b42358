// GPT-2's forward pass (Radford et al. 2019): a causal decoder with learned positions, LayerNorm
// and biases.
#pragma once

#include <memory>

#include "models/packed_model.h"

namespace quintet {

// `config` is validated; `weights`, which may be only described (then the model can only be
// measured), belong to it and lie where `stream` runs. Positions reach
// config.max_positions - 1 at most; the caller keeps requests within that.
std::unique_ptr<PackedModel> MakeGpt2Model(ModelConfig config, const ModelLimits& limits,
                                           ModelWeights weights, const Stream& stream);

}  // namespace quintet
