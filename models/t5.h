// Forward pass of the T5 family (Raffel et al. 2020): T5, v1.1, Flan-T5, mT5, UMT5, ByT5, MADLAD,
// LongT5 and FAT5. The layers of these models differ only in the feed-forward activation, which may
// be gated, in the position encoding (T5's buckets, ALiBi, FIRE, or rotary with xPos) and in the
// keys that a token of the encoder sees: all, or with LongT5 (Guo et al. 2022) those of a window
// and of the global tokens.
#pragma once

#include <memory>

#include "models/packed_model.h"

namespace quintet {

// `config` is validated. `weights` were loaded for this config, into memory that the kernels of
// `stream` can read. If `weights` come from DescribeWeights, which allocates no matrices, only
// Measure may be called on the model.
std::unique_ptr<PackedModel> MakeT5Model(ModelConfig config, const ModelLimits& limits,
                                         SharedWeights weights, const Stream& stream);

}  // namespace quintet
