// Normalisation over the last dimension.
#pragma once

#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// y = x * rsqrt(mean(x^2) + eps) * gamma. T5: no mean, no bias.
struct RmsNormArgs {
  Tensor x;      // [rows, d] f32
  Tensor gamma;  // [d] f32
  Tensor y;      // [rows, d] f32, may alias x
  float eps = 1e-6f;
};
void RmsNorm(const RmsNormArgs& args, Stream& stream);

// y = (x - mean) * rsqrt(var + eps) * gamma + beta, biased variance in two passes. GPT-2.
struct LayerNormArgs {
  Tensor x;      // [rows, d] f32
  Tensor gamma;  // [d] f32
  Tensor beta;   // [d] f32
  Tensor y;      // [rows, d] f32, may alias x
  float eps = 1e-5f;
};
void LayerNorm(const LayerNormArgs& args, Stream& stream);

}  // namespace quintet
