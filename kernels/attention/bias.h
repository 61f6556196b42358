// Position bias and causal mask of one head on the CPU, as a function of the distance delta = key
// position - query position. All (query, key) pairs on one diagonal of a tile have the same
// distance; the bias is therefore computed in strips, which are arrays over consecutive distances.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/attention/position_bias.h"

namespace quintet::cpu {

class DistanceBias {
 public:
  DistanceBias(const PositionBias* bias, bool causal, int64_t head) {
    kind_ = bias == nullptr ? BiasKind::kNone : bias->kind;
    hide_after_ = causal;
    if (kind_ == BiasKind::kTable) {
      saturation_ = bias->saturation;
      table_ = bias->table.as<float>() + head * bias->table.stride[0] + saturation_;
    } else if (kind_ == BiasKind::kAlibi) {
      slope_ = bias->slopes.as<float>()[head * bias->slopes.stride[0]];
      const bool first_half = head < bias->heads / 2;
      hide_after_ |= bias->asymmetric && first_half;
      hide_before_ = bias->asymmetric && !first_half;
    }
  }

  bool hide_after() const { return hide_after_; }    // keys after the query are hidden
  bool hide_before() const { return hide_before_; }  // keys before the query are hidden

  // Returns whether all (query, key) pairs at distances (key minus query position) in [lo, hi] are
  // hidden.
  bool Hidden(int64_t lo, int64_t hi) const {
    return (hide_after_ && lo > 0) || (hide_before_ && hi < 0);
  }

  // out[i] = bias at distance (key minus query position) begin + step * i, for i < count; step is 1
  // or -1. -inf where the key is hidden. 0 for FIRE, whose bias also depends on the query position.
  void FillStrip(int64_t begin, int step, int64_t count, float* out) const {
    const int64_t end = begin + step * (count - 1);
    if (Constant(std::min(begin, end), std::max(begin, end))) {
      std::fill(out, out + count, At(begin));
      return;
    }
    for (int64_t i = 0; i < count; ++i) out[i] = At(begin + step * i);
  }

 private:
  // Returns true only if no distance (key minus query position) in [lo, hi] is hidden and the bias
  // At() is the same for all of them. With a bias table, all these distances must be at or beyond
  // the table's saturation distance, on the same side of 0. Always false for ALiBi. For FIRE, At()
  // is 0 at every distance that is not hidden, because FIRE's bias is added elsewhere.
  bool Constant(int64_t lo, int64_t hi) const {
    if ((hide_after_ && hi > 0) || (hide_before_ && lo < 0)) return false;
    if (kind_ == BiasKind::kTable) return hi <= -saturation_ || lo >= saturation_;
    return kind_ != BiasKind::kAlibi;
  }

  float At(int64_t delta) const {
    if ((hide_after_ && delta > 0) || (hide_before_ && delta < 0)) {
      return -std::numeric_limits<float>::infinity();
    }
    if (kind_ == BiasKind::kTable) return table_[std::clamp(delta, -saturation_, saturation_)];
    if (kind_ == BiasKind::kAlibi) return -slope_ * static_cast<float>(std::abs(delta));
    return 0.0f;
  }

  BiasKind kind_;
  bool hide_after_ = false, hide_before_ = false;
  const float* table_ = nullptr;  // the table's entry for distance 0
  int64_t saturation_ = 0;
  float slope_ = 0.0f;
};

// The bias of one head for global keys (AttentionArgs::globals), as a function of the difference of
// block numbers: global key minus block of the query.
class GlobalBias {
 public:
  GlobalBias(const GlobalKeys& globals, int64_t global_keys, int64_t head)
      : block_(globals.block),
        last_(global_keys - 1),
        saturation_(static_cast<int32_t>(globals.bias->saturation)),
        table_(globals.bias->table.as<float>() + head * globals.bias->table.stride[0]) {}

  int32_t BlockOf(int64_t position) const {
    return static_cast<int32_t>(std::min(position / block_, last_));
  }
  int32_t saturation() const { return saturation_; }
  // [2 * saturation + 1], element i: the bias for a difference of i - saturation.
  const float* table() const { return table_; }
  float At(int32_t difference) const {
    return table_[std::clamp(difference, -saturation_, saturation_) + saturation_];
  }

 private:
  int64_t block_, last_;
  int32_t saturation_;
  const float* table_;
};

// FIRE's bias is a small neural network of the input f = FireDistance(delta) / FireLength(query
// position).
inline float FireDistance(const PositionBias& bias, int64_t delta) {
  const float f = std::log(std::abs(bias.fire_c * static_cast<float>(delta)) + 1.0f);
  return delta < 0 ? f : -f;  // positive if the query comes after the key
}
inline float FireLength(const PositionBias& bias, int64_t position) {
  const float reach = std::max(static_cast<float>(position), bias.fire_threshold);
  return std::log(std::abs(bias.fire_c * reach) + 1.0f) + 1e-6f;
}

}  // namespace quintet::cpu
