// Constants of rotary position embedding and xPos for each pair of channels. They are computed here
// for the CPU and the GPU backend, so that both rotate by the same angles.
#pragma once

#include <cmath>

#include "kernels/ops/rotary.h"

namespace quintet {

inline constexpr int64_t kMaxRotaryPairs = 128;  // head_dim <= 256

struct RotaryChannels {
  float theta[kMaxRotaryPairs];  // rotation angle per position
  float zeta[kMaxRotaryPairs];   // xPos: scale at distance xpos_base

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
