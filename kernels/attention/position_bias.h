// Relative position bias as a per-head function of the query and key positions; a [q_len, kv_len]
// matrix never exists. A PositionBias holds views of small tables that are built once at load
// (models/weights/position.cc). It is passed to attention by pointer.
#pragma once

#include "kernels/base/tensor.h"

namespace quintet {

enum class BiasKind : uint8_t { kNone, kTable, kAlibi, kFire };

struct PositionBias {
  BiasKind kind = BiasKind::kNone;
  int64_t heads = 0;

  // kTable: bias(h, q, k) = table[h, clamp(k - q, -saturation, saturation) + saturation]. T5's
  // buckets assign the same bias to all distances beyond `saturation` on the same side. A tile that
  // has only such distances adds one constant per head.
  Tensor table;  // [heads, 2 * saturation + 1] f32
  int64_t saturation = 0;

  // kAlibi: bias = -slopes[h] * |k - q|. asymmetric: heads of the first half hide keys k > q, the
  // others hide keys k < q (-inf).
  Tensor slopes;  // [heads] f32
  bool asymmetric = false;

  // kFire: f = sign(q-k) ln(|c (q-k)| + 1) / (ln(|c max(q, threshold)| + 1) + 1e-6), followed by a
  // small ReLU network of f. The network is piecewise linear, so it is tabulated exactly: segment s
  // covers (knots[s-1], knots[s]] and gives bias = segment_slope[h, s] * f + segment_offset[h, s].
  // Adjacent segments agree at their knot.
  float fire_c = 0.0f;
  float fire_threshold = 0.0f;  // |L_multiplier * init_L|
  Tensor knots;                 // [segments - 1] f32 ascending
  Tensor segment_slope;         // [heads, segments] f32
  Tensor segment_offset;        // [heads, segments] f32
};

}  // namespace quintet
