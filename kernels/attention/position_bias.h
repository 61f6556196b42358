// Relative position bias as a per-head function of the query and key positions; a [q_len, kv_len]
// matrix is never built. A PositionBias holds views of small tables that are built once at load
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

  // kAlibi: bias = -slopes[h] * |k - q|. asymmetric: the first half of the heads hides keys k > q
  // (bias -inf), the other half hides keys k < q.
  Tensor slopes;  // [heads] f32
  bool asymmetric = false;

  // kFire: the bias is a small ReLU network of f = sign(q-k) ln(|c (q-k)| + 1) / (ln(|c max(q,
  // threshold)| + 1) + 1e-6). The network is piecewise linear in f and therefore tabulated exactly.
  // All heads share the knots; segment s of head h covers (knots[s-1], knots[s]] (the first and the
  // last segment are unbounded) and gives bias = segment_slope[h, s] * f + segment_offset[h, s].
  // Adjacent segments have the same value at their common knot.
  float fire_c = 0.0f;
  float fire_threshold = 0.0f;  // |L_multiplier * init_L|
  Tensor knots;                 // [segments - 1] f32 ascending
  Tensor segment_slope;         // [heads, segments] f32
  Tensor segment_offset;        // [heads, segments] f32
};

}  // namespace quintet
