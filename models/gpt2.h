// GPT-2's forward pass (Radford et al. 2019): a causal decoder with learned positions, LayerNorm
// and biases.
#pragma once

#include <memory>

#include "models/model.h"
#include "models/weights.h"

namespace quintet {

// `config` is validated; `weights` belong to it and lie where `stream` runs. RESOURCE_EXHAUSTED when the workspace for
// `limits` cannot be had. Positions reach config.max_positions - 1 at most; the caller keeps
// requests within that.
absl::StatusOr<std::unique_ptr<Model>> NewGpt2Model(ModelConfig config, const ModelLimits& limits,
                                                    ModelWeights weights, const Stream& stream);

// The memory of such a model, from weights that are only described.
absl::StatusOr<ModelMemory> MeasureGpt2Model(ModelConfig config, const ModelLimits& limits,
                                             ModelWeights weights, const Stream& stream);

}  // namespace quintet
