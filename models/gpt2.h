// GPT-2's forward pass (Radford et al. 2019): a causal decoder with learned positions, LayerNorm
// and biases.
#pragma once

#include <memory>

#include "models/packed_model.h"

namespace quintet {

// The caller must have validated `config` and loaded `weights` for it, into memory that the kernels
// of `stream` can read. If `weights` come from DescribeWeights, which allocates no matrices, only
// Measure may be called on the model.
//
// Every position that a caller passes must be below config.max_positions (QT_CHECK).
std::unique_ptr<PackedModel> MakeGpt2Model(ModelConfig config, const ModelLimits& limits,
                                           SharedWeights weights, const Stream& stream);

}  // namespace quintet
