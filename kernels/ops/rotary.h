// Rotary position embedding (RoPE, Su et al. 2021) with the optional scaling of xPos (Sun et al.
// 2022). FAT5 rotates queries, keys and values.
#pragma once

#include "kernels/base/tensor.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// Channels [0, rotary_dim) of each head are rotated in pairs, the others are copied. `interleaved`
// determines which two channels form pair c; their values (a, b) become (a cos t - b sin t, b cos t
// + a sin t) * scale, where t = position * theta_c and theta_c = base^(-2c / rotary_dim), both
// rounded to f32 as in the reference implementation.
struct RotaryArgs {
  Tensor x;  // [rows, heads, head_dim] f32 (GPU: also bf16|f16), any row and head stride
  // Result, with the shape of x; may alias x. Its dtype is that of x. On a GPU with an f32 x, it
  // may also be bf16 or f16, or kF8 as in a KvCache.
  Tensor y;
  // Used if y is the KV cache (kernels/ops/kv_cache.h): row r of y begins at element row_offset[r]
  // of y.data. If y aliases x, the rows of x are read at these offsets, too. If row_offset is null,
  // rows begin at multiples of the row stride of y.
  const int64_t* row_offset = nullptr;  // [rows]
  Tensor positions;                     // [rows] i32
  float base = 10000.0f;
  int64_t rotary_dim = 0;    // even, <= head_dim
  bool interleaved = false;  // pair c is channels (2c, 2c + 1), else (c, c + rotary_dim / 2)
  // xPos scale of pair c: zeta_c ^ (xpos_sign * (position - xpos_center) / xpos_base) with zeta_c =
  // (2c + 0.4 rotary_dim) / (1.4 rotary_dim). If xpos_base is 0, the scale is 1.
  float xpos_base = 0.0f;
  int64_t xpos_center = 0;
  int xpos_sign = 1;  // 1 for queries, -1 for keys and values
};
void Rotary(const RotaryArgs& args, Stream& stream);

}  // namespace quintet
