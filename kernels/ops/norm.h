// Normalization over the last dimension: RMSNorm (T5) and LayerNorm (GPT-2).
//
// On the CPU x and y are f32. On a GPU y is f32, bf16 or f16, and x is f32 or has the dtype of y.
// gamma, beta and all sums are f32. The result of a row does not depend on other rows.
#pragma once

#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// y = x * rsqrt(mean(x^2) + eps) * gamma
struct RmsNormArgs {
  Tensor x;      // [x_rows, d]
  Tensor gamma;  // [d]
  Tensor y;      // [rows, d]; may alias x when `rows` is empty
  float eps = 1e-6f;
  // Optional gather, [rows], pinned host array with a device copy: row r of y is the norm of row
  // rows[r] of x, where 0 <= rows[r] < x_rows. Empty: row r of y is the norm of row r of x, and y
  // has x_rows rows.
  std::span<const int32_t> rows;
};
void RmsNorm(const RmsNormArgs& args, Stream& stream);

// y = (x - mean) * rsqrt(var + eps) * gamma + beta, with the biased variance, computed in two
// passes.
struct LayerNormArgs {
  Tensor x;      // [x_rows, d]
  Tensor gamma;  // [d]
  Tensor beta;   // [d]
  Tensor y;      // [rows, d]; may alias x when `rows` is empty
  float eps = 1e-5f;
  std::span<const int32_t> rows;  // as in RmsNormArgs
};
void LayerNorm(const LayerNormArgs& args, Stream& stream);

}  // namespace quintet
