// Normalisation over the last dimension. Activations (x, y) are f32; on a GPU f32, bf16 or f16, x f32 or y's type. gamma and beta are
// f32 everywhere.
#pragma once

#include "absl/types/span.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// y = x * rsqrt(mean(x^2) + eps) * gamma. T5: no mean, no bias.
struct RmsNormArgs {
  Tensor x;      // [rows, d]
  Tensor gamma;  // [d]
  Tensor y;      // [rows, d], may alias x when it has all its rows
  float eps = 1e-6f;
  absl::Span<const int32_t> rows;  // the row of x behind each row of y, in [0, x rows); empty: the same
};
void RmsNorm(const RmsNormArgs& args, Stream& stream);

// y = (x - mean) * rsqrt(var + eps) * gamma + beta, biased variance in two passes. GPT-2.
struct LayerNormArgs {
  Tensor x;      // [rows, d]
  Tensor gamma;  // [d]
  Tensor beta;   // [d]
  Tensor y;      // [rows, d], may alias x when it has all its rows
  float eps = 1e-5f;
  absl::Span<const int32_t> rows;  // as in RmsNormArgs
};
void LayerNorm(const LayerNormArgs& args, Stream& stream);

}  // namespace quintet
