// GPT-2's forward pass (Radford et al. 2019): a causal decoder with learned positions, LayerNorm
// and biases.
#pragma once

#include <memory>

#include "models/packed_model.h"

namespace quintet {

// `config` is validated. `weights` belong to it and are in the memory of `stream`. Weights of
// DescribeWeights, which have no values, are allowed: then only Measure may be called.
//
// The caller keeps positions below config.max_positions (QT_CHECK).
std::unique_ptr<PackedModel> MakeGpt2Model(ModelConfig config, const ModelLimits& limits,
                                           ModelWeights weights, const Stream& stream);

}  // namespace quintet
