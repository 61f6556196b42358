#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu_ops.h"
#include "kernels/ops/rotary_channels.h"
#include "kernels/runtime/parallel_rows.h"

namespace quintet::cpu {
namespace {

// cos(t) * scale and sin(t) * scale of each pair of channels at one position, where t is the
// rotation angle and `scale` is the xPos scale. All heads of a row use the same values.
struct Angles {
  std::array<float, kMaxRotaryPairs> cosine, sine;
};

void FillAngles(const RotaryArgs& args, const RotaryChannels& channels, int32_t position,
                Angles* angles) {
  const int64_t pairs = args.rotary_dim / 2;
  for (int64_t c = 0; c < pairs; ++c) {
    const float angle = static_cast<float>(position) * channels.theta[c];
    angles->cosine[c] = std::cos(angle);
    angles->sine[c] = std::sin(angle);
  }
  if (args.xpos_base == 0.0f) return;
  const float power = static_cast<float>(position - args.xpos_center) / args.xpos_base;
  for (int64_t c = 0; c < pairs; ++c) {
    const float scale = std::pow(channels.zeta[c], power);
    angles->cosine[c] = args.xpos_sign > 0 ? angles->cosine[c] * scale : angles->cosine[c] / scale;
    angles->sine[c] = args.xpos_sign > 0 ? angles->sine[c] * scale : angles->sine[c] / scale;
  }
}

// Rotates `pairs` pairs of channels of one head x in place. Pair c is channels (2c, 2c + 1) if
// interleaved, else (c, c + pairs).
void Rotate(const Angles& angles, int64_t pairs, bool interleaved, float* x) {
  const int64_t step = interleaved ? 2 : 1, gap = interleaved ? 1 : pairs;
  for (int64_t c = 0; c < pairs; ++c) {
    const float a = x[c * step], b = x[c * step + gap];
    x[c * step] = a * angles.cosine[c] - b * angles.sine[c];
    x[c * step + gap] = b * angles.cosine[c] + a * angles.sine[c];
  }
}

}  // namespace

void Rotary(const RotaryArgs& args, ThreadPool& pool) {
  const bool in_place = args.y.data == args.x.data;
  if (args.rotary_dim == 0 && in_place) return;
  const RotaryChannels channels(args);
  const int64_t heads = args.x.dim[1], dim = args.x.dim[2];
  ParallelRows(pool, args.x.dim[0], heads * dim, [&](int64_t begin, int64_t end) {
    Angles angles;
    for (int64_t r = begin; r < end; ++r) {
      FillAngles(args, channels, args.positions.as<int32_t>()[r * args.positions.stride[0]],
                 &angles);
      const float* from = args.x.as<float>() + r * args.x.stride[0];
      float* to = args.y.as<float>() +
                  (args.row_offset == nullptr ? r * args.y.stride[0] : args.row_offset[r]);
      for (int64_t h = 0; h < heads; ++h, from += args.x.stride[1], to += args.y.stride[1]) {
        if (!in_place) std::copy(from, from + dim, to);
        Rotate(angles, args.rotary_dim / 2, args.interleaved, to);
      }
    }
  });
}

}  // namespace quintet::cpu
