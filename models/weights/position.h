// Computes the tables of a PositionBias (kernels/attention/position_bias.h) from a checkpoint's
// position parameters: T5's buckets (Raffel et al. 2020), ALiBi's slopes (Press et al. 2021),
// FIRE's network (Li et al. 2023).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention/position_bias.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "models/config/config.h"

namespace quintet {

// Position parameters of one layer as read from a file, all f32. A tensor that the position
// encoding does not have is undefined (Tensor::defined() is false). Each trailing comment gives the
// tensor's name in converted checkpoints, without the prefix `layers.N.position.`, and its shape.
struct PositionParameters {
  Tensor buckets;          // buckets.weight [bias_buckets, heads]
  Tensor global_buckets;   // global_buckets.weight [bias_buckets, heads], LongT5
  Tensor fire_in;          // fire_in.weight [fire_width, 1]
  Tensor fire_in_bias;     // fire_in.bias [fire_width]
  Tensor fire_out;         // fire_out.weight [heads, fire_width]
  Tensor fire_out_bias;    // fire_out.bias [heads]
  Tensor fire_c;           // fire_c []
  Tensor fire_length;      // fire_length []: init_L
  Tensor fire_multiplier;  // fire_multiplier []: L_multiplier
};

// T5's bucket for each relative position k - q (key position minus query position) from -saturation
// to +saturation. `saturation` is the smallest distance in the last bucket. Relative positions
// below -saturation have the bucket of -saturation, and those above +saturation have the bucket of
// +saturation.
struct BucketMap {
  int64_t saturation = 0;
  std::vector<int32_t> buckets;  // [2 * saturation + 1], element i: k - q = i - saturation
};
BucketMap MapBuckets(int64_t buckets, int64_t max_distance, bool causal);

// Returns ALiBi's slope of each head. If `asymmetric`, each half of the heads has the slopes of a
// model with half as many heads.
std::vector<float> AlibiSlopes(int64_t heads, bool asymmetric);

// Returns the position bias of one stack's self-attention; kind kNone for position encodings
// without a bias. The buffers of its tables are appended to `storage`, which must outlive it.
// Returns RESOURCE_EXHAUSTED if there is not enough memory. BuildGlobalBias does the same for the
// global tokens of LongT5's encoder; kind kNone if the model has none.
absl::StatusOr<PositionBias> BuildPositionBias(const ModelConfig& config, bool causal,
                                               const PositionParameters& parameters,
                                               std::vector<Buffer>* storage);
absl::StatusOr<PositionBias> BuildGlobalBias(const ModelConfig& config,
                                             const PositionParameters& parameters,
                                             std::vector<Buffer>* storage);

}  // namespace quintet
