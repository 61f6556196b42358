// Rotary position embedding (RoPE) with xPos scaling. FAT5 rotates Q, K and V.
#pragma once

#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

// Channels [0, rotary_dim) of each head rotate, the rest pass. Pair (a, b) becomes (a cos - b sin, b cos + a sin) * scale.
struct RotaryArgs {
  Tensor x;  // [rows, heads, head_dim] f32 (GPU: or bf16, f16), any row and head stride
  Tensor y;  // as x, and may be it; GPU: or of another type, where x is f32
  // [rows], or null: where each row of y begins, in elements, instead of the row stride, and of x where it is y. Rows of the cache lie so
  // (kv_cache.h).
  const int64_t* row_offset = nullptr;
  Tensor positions;  // [rows] i32
  // theta_c = base^(-2c / rotary_dim), angle = position * theta_c, computed in f32 as the reference does
  float base = 10000.0f;
  int64_t rotary_dim = 0;    // even, <= head_dim
  bool interleaved = false;  // pairs (2c, 2c+1) instead of (c, c + rotary_dim/2)
  // xPos: scale = zeta_c ^ (xpos_sign * (position - xpos_center) / xpos_base), zeta_c = (2c + 0.4 rd) / (1.4 rd); off when
  // xpos_base is 0. Queries use sign +1, keys and values -1.
  float xpos_base = 0.0f;
  int64_t xpos_center = 0;
  int xpos_sign = 1;
};
void Rotary(const RotaryArgs& args, Stream& stream);

}  // namespace quintet
