// Builds the tables behind PositionBias from a checkpoint's position parameters: T5's buckets
// (Raffel et al. 2020), ALiBi's slopes (Press et al. 2021), FIRE's network (Li et al. 2023).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/buffer.h"
#include "kernels/position_bias.h"
#include "models/config.h"

namespace quintet {

// One layer's position parameters as read from a file, all f32; undefined where the encoding has
// none. Names are those of converted checkpoints, below `layers.N.position.`
struct PositionParameters {
  Tensor buckets;          // buckets.weight [bias_buckets, heads]
  Tensor fire_in;          // fire_in.weight [fire_width, 1]
  Tensor fire_in_bias;     // fire_in.bias [fire_width]
  Tensor fire_out;         // fire_out.weight [heads, fire_width]
  Tensor fire_out_bias;    // fire_out.bias [heads]
  Tensor fire_c;           // fire_c []
  Tensor fire_length;      // fire_length []: init_L
  Tensor fire_multiplier;  // fire_multiplier []: L_multiplier
};

// The bucket of every relative position k - q in [-saturation, saturation], and the least
// saturation beyond which buckets no longer change.
struct BucketMap {
  int64_t saturation = 0;
  std::vector<int32_t> buckets;  // [2 * saturation + 1]
};
BucketMap MapBuckets(int64_t buckets, int64_t max_distance, bool causal);

// The slope of each head; asymmetric: those of heads / 2, twice.
std::vector<float> AlibiSlopes(int64_t heads, bool asymmetric);

// The bias of one stack's self-attention (kNone for encodings without one). Its tables live in
// buffers added to `storage`. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<PositionBias> BuildPositionBias(const ModelConfig& config, bool causal,
                                               const PositionParameters& parameters,
                                               std::vector<Buffer>* storage);

}  // namespace quintet
