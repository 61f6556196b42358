// How far ALiBi lets queries reach, for the Hopper attention kernel.
#pragma once

#include "kernels/attention_call.cuh"

namespace quintet::cuda {

// Keys whose weights are 0 whatever the values are. A row's weights are 2^(score - most), most its
// largest score, in f32 that knows no smaller numbers than 2^-126. A query's own key is at distance
// 0, so most >= -|q| |own k|, and a key's score is at most |q| |k| - slope distance (Cauchy and
// Schwarz; all in units of log2). Where slope distance - |q| (|k| + |own k|) > kNothing for the
// longest of a block's queries and of a tile's keys, the tile's weights are 0 in every row.
class AlibiReach {
 public:
  // Of `rows` queries of a head from position `position` and from row `row` of call.q on, which all
  // have their own keys; the sequence's keys begin at row first_key. The call has magnitudes.
  __device__ AlibiReach(const AttentionCall& call, const HeadBias& bias, int head, int position,
                        int rows, int64_t row, int first_key)
      : keys_(call.magnitudes + (call.magnitude_tiles * call.heads + head)),
        heads_(call.heads),
        first_key_(first_key),
        position_(position),
        last_(position + rows - 1),
        queries_(Most(call.magnitudes + head, row, rows) * call.scale * kLog2E),
        own_(Most(keys_, first_key + position, rows)),
        before_(-bias.At(-1)),
        after_(-bias.At(1)) {}

  // A warp asks together: leaves of the range what lies between tiles that count.
  __device__ void Narrow(KeyRange* range, int tile_keys) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, end = range->end;
    int first = end, last = end;
    for (int base = range->begin; base < end; base += 32 * tile_keys) {
      const int begin = base + lane * tile_keys;
      const uint32_t seen =
          __ballot_sync(0xffffffffu, begin < end && Reaches(begin, min(begin + tile_keys, end)));
      if (seen == 0) continue;
      first = min(first, base + (__ffs(static_cast<int>(seen)) - 1) * tile_keys);
      last = base + (32 - __clz(static_cast<int>(seen))) * tile_keys;
    }
    range->begin = first;
    range->end = min(last, end);
  }

 private:
  static constexpr float kNothing = 136.0f;  // some more than 126, for what rounding does

  // Keys [begin, end) count.
  __device__ bool Reaches(int begin, int end) const {
    const int distance = max(position_ - (end - 1), begin - last_);
    if (distance <= 0) return true;
    const float most = queries_ * (Most(keys_, first_key_ + begin, end - begin) + own_);
    const float slope = begin > last_ ? after_ : before_;
    return !(most - slope * static_cast<float>(distance) < -kNothing);  // true of what is no number
  }
  __device__ float Most(const float* magnitudes, int64_t row, int rows) const {
    float most = 0.0f;
    for (int64_t i = row / kMagnitudeRows; i <= (row + rows - 1) / kMagnitudeRows; ++i) {
      most = fmaxf(most, __ldcg(magnitudes + i * heads_));
    }
    return most;
  }

  const float* const keys_;
  const int heads_, first_key_, position_, last_;
  const float queries_, own_, before_, after_;  // in units of log2
};

}  // namespace quintet::cuda
