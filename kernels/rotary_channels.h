// What a rotary encoding needs of each pair of channels, whatever the position. Both backends take
// it from here, so that they turn by the same angles.
#pragma once

#include <cmath>

#include "kernels/rotary.h"

namespace quintet {

inline constexpr int64_t kMaxRotaryPairs = 128;  // head_dim <= 256

struct RotaryChannels {
  float theta[kMaxRotaryPairs];  // angle of position 1
  float zeta[kMaxRotaryPairs];   // xPos: scale of one xpos_base

  explicit RotaryChannels(const RotaryArgs& args) {
    const float dim = static_cast<float>(args.rotary_dim);
    for (int64_t c = 0; c < args.rotary_dim / 2; ++c) {
      const float twice_c = static_cast<float>(2 * c);
      theta[c] = 1.0f / std::pow(args.base, twice_c / dim);
      zeta[c] = (twice_c + 0.4f * dim) / (1.4f * dim);
    }
  }
};

}  // namespace quintet
