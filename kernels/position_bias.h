// Relative position bias as a per-head function of the query and key positions: no [q_len, kv_len]
// matrix exists anywhere. A PositionBias holds views of small tables built once at load
// (models/position.cc) and is passed to attention by pointer.
#pragma once

#include "kernels/tensor.h"

namespace quintet {

enum class BiasKind : uint8_t { kNone, kTable, kAlibi, kFire };

struct PositionBias {
  BiasKind kind = BiasKind::kNone;
  int64_t heads = 0;

  // kTable: bias(h, q, k) = table[h, clamp(k - q, -saturation, saturation) + saturation]. T5's
  // buckets saturate, so tiles wholly past the saturation distance add one constant per head.
  Tensor table;  // [heads, 2 * saturation + 1] f32
  int64_t saturation = 0;

  // kAlibi: bias = -slopes[h] * |k - q|; asymmetric: heads in the first half hide keys k > q, the
  // others keys k < q (-inf).
  Tensor slopes;  // [heads] f32
  bool asymmetric = false;

  // kFire: f = sign(q-k) ln(|c (q-k)| + 1) / (ln(|c max(q, threshold)| + 1) + 1e-6), then a small
  // ReLU network of f. That network is piecewise linear in f, so it is tabulated exactly: segment s
  // covers (knots[s-1], knots[s]] and gives bias = segment_slope[h, s] * f + segment_offset[h, s],
  // which agree on both sides of a knot.
  float fire_c = 0.0f;
  float fire_threshold = 0.0f;  // |L_multiplier * init_L|
  Tensor knots;                 // [segments - 1] f32 ascending
  Tensor segment_slope;         // [heads, segments] f32
  Tensor segment_offset;        // [heads, segments] f32
};

}  // namespace quintet
