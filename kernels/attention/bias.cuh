// Position bias and causal mask of one head on the GPU, as a function of the distance delta = key
// position - query position. CPU version: attention/bias.h. Bias values are in log2 units
// (multiplied by log2 e), because the kernels' softmax uses powers of two.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention/position_bias.h"

namespace quintet::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// PositionBias with device addresses.
struct BiasTables {
  BiasKind kind = BiasKind::kNone;
  const float* table = nullptr;  // [heads, 2 * saturation + 1]
  int64_t table_stride = 0;
  int32_t saturation = 0;
  const float* slopes = nullptr;  // [heads]
  int64_t slopes_stride = 0;
  bool asymmetric = false;
  float fire_c = 0, fire_threshold = 0;
  const float* knots = nullptr;  // [segments - 1]
  int32_t segments = 0;
  const float* segment_slope = nullptr;  // [heads, segments]
  const float* segment_offset = nullptr;
  int64_t slope_stride = 0, offset_stride = 0;

  BiasTables() = default;
  explicit BiasTables(const PositionBias* bias) {
    if (bias == nullptr) return;
    kind = bias->kind;
    if (kind == BiasKind::kTable) {
      table = bias->table.as<float>();
      table_stride = bias->table.stride[0];
      saturation = static_cast<int32_t>(bias->saturation);
    } else if (kind == BiasKind::kAlibi) {
      slopes = bias->slopes.as<float>();
      slopes_stride = bias->slopes.stride[0];
      asymmetric = bias->asymmetric;
    } else if (kind == BiasKind::kFire) {
      fire_c = bias->fire_c;
      fire_threshold = bias->fire_threshold;
      knots = bias->knots.as<float>();
      segments = static_cast<int32_t>(bias->segment_slope.dim[1]);
      segment_slope = bias->segment_slope.as<float>();
      segment_offset = bias->segment_offset.as<float>();
      slope_stride = bias->segment_slope.stride[0];
      offset_stride = bias->segment_offset.stride[0];
    }
  }
};

class HeadBias {
 public:
  __device__ HeadBias(const BiasTables& tables, bool causal, int head, int heads)
      : kind_(tables.kind), hide_after_(causal), hide_before_(false) {
    if (kind_ == BiasKind::kTable) {
      saturation_ = tables.saturation;
      values_ = tables.table + head * tables.table_stride + saturation_;
    } else if (kind_ == BiasKind::kAlibi) {
      slope_ = tables.slopes[head * tables.slopes_stride] * kLog2E;
      const bool first_half = head < heads / 2;
      hide_after_ |= tables.asymmetric && first_half;
      hide_before_ = tables.asymmetric && !first_half;
    } else if (kind_ == BiasKind::kFire) {
      values_ = tables.segment_slope + head * tables.slope_stride;
      offsets_ = tables.segment_offset + head * tables.offset_stride;
      knots_ = tables.knots;
      segments_ = tables.segments;
      slope_ = tables.fire_c;
      threshold_ = tables.fire_threshold;
    }
  }

  __device__ bool hide_after() const { return hide_after_; }    // keys after the query are hidden
  __device__ bool hide_before() const { return hide_before_; }  // keys before the query are hidden
  __device__ bool table() const { return kind_ == BiasKind::kTable; }
  __device__ bool fire() const { return kind_ == BiasKind::kFire; }

  __device__ bool Hidden(int delta) const {
    return (hide_after_ && delta > 0) || (hide_before_ && delta < 0);
  }

  // Returns true only if no distance (key minus query position) in [lo, hi] is hidden and all of
  // these distances have the same bias, At(lo). Always false for ALiBi and FIRE.
  __device__ bool Constant(int lo, int hi) const {
    if ((hide_after_ && hi > 0) || (hide_before_ && lo < 0)) return false;
    if (kind_ == BiasKind::kTable) return hi <= -saturation_ || lo >= saturation_;
    return kind_ == BiasKind::kNone;
  }

  // Bias at distance `delta` (key minus query position); -inf if the key is hidden. 0 for FIRE,
  // whose bias also depends on the query position (see Pair).
  __device__ float At(int delta) const {
    if (Hidden(delta)) return -INFINITY;
    if (kind_ == BiasKind::kTable) {
      return __ldg(values_ + min(max(delta, -saturation_), saturation_)) * kLog2E;
    }
    if (kind_ == BiasKind::kAlibi) return -slope_ * fabsf(static_cast<float>(delta));
    return 0.0f;
  }

  // Sets bias[i] to the bias at distance delta[i] (key minus query position), for several distances
  // at once; branches only once on the kind of bias.
  template <int kCount>
  __device__ void At(const int (&delta)[kCount], float (&bias)[kCount]) const {
    if (kind_ == BiasKind::kTable) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        bias[i] = __ldg(values_ + min(max(delta[i], -saturation_), saturation_)) * kLog2E;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float distance = fabsf(static_cast<float>(delta[i]));
        bias[i] = kind_ == BiasKind::kAlibi ? -slope_ * distance : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (Hidden(delta[i])) bias[i] = -INFINITY;
    }
  }

  // FIRE's bias is FireNetwork(f), a small neural network, where f = FireDistance(delta) *
  // FireInverseLength(query position).
  __device__ float FireDistance(int delta) const {
    const float f = logf(fabsf(slope_ * static_cast<float>(delta)) + 1.0f);
    return delta < 0 ? f : -f;  // positive if the query comes after the key
  }
  __device__ float FireInverseLength(int position) const {
    const float reach = fmaxf(static_cast<float>(position), threshold_);
    return 1.0f / (logf(fabsf(slope_ * reach) + 1.0f) + 1e-6f);
  }
  __device__ float FireNetwork(float f) const {
    const int segment = FireSegment(f);
    return fmaf(__ldg(values_ + segment), f, __ldg(offsets_ + segment)) * kLog2E;
  }
  // FIRE's network is piecewise linear. FireSegment: index of the linear segment that contains f.
  // FireFloor: the knot (breakpoint) at the left end of a segment. FireLine: slope and offset of a
  // segment, in log2 units.
  __device__ int FireSegment(float f) const {
    int low = 0, high = segments_ - 1;  // segment s ends at the first knot >= f
    while (low < high) {
      const int middle = (low + high) / 2;
      if (__ldg(knots_ + middle) < f) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ float FireFloor(int segment) const {
    return segment == 0 ? -INFINITY : __ldg(knots_ + segment - 1);
  }
  __device__ float2 FireLine(int segment) const {  // {slope, offset}
    return {__ldg(values_ + segment) * kLog2E, __ldg(offsets_ + segment) * kLog2E};
  }
  __device__ int FireSegments() const { return segments_; }
  __device__ float fire_c() const { return slope_; }

  // Bias of one pair: the query at `position` with the key at `key`. Supports every kind of bias;
  // -inf if the key is hidden from the query.
  __device__ float Pair(int position, int key) const {
    const int delta = key - position;
    const float at = At(delta);
    if (kind_ != BiasKind::kFire || at != 0.0f) return at;
    return FireNetwork(FireDistance(delta) * FireInverseLength(position));
  }

 private:
  BiasKind kind_;
  bool hide_after_, hide_before_;
  int saturation_ = 0, segments_ = 0;
  float slope_ = 0.0f;             // ALiBi's slope or FIRE's c
  float threshold_ = 0.0f;         // FIRE only
  const float* values_ = nullptr;  // table at distance 0, or FIRE's slopes
  const float* offsets_ = nullptr;
  const float* knots_ = nullptr;
};

}  // namespace quintet::cuda
