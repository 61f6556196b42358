// Skipping of K/V tiles in which ALiBi's bias makes every P 0, for the Hopper attention kernel.
#pragma once

#include "kernels/attention/call.cuh"

namespace quintet::cuda {

// Finds the K/V tiles whose probabilities P are all exactly 0, whatever V holds. In log2 units, P =
// 2^(score - row_max) is 0 in f32 below 2^-126. A query's own key has distance 0, hence row_max >=
// -|q| |k_own|; by Cauchy-Schwarz a key's score is at most |q| |k| - slope * distance. Therefore P
// is 0 in the whole tile if slope * distance - |q| (|k| + |k_own|) > kZeroProbBound. Here |q| and
// |k_own| are the largest norms among the tile's queries and among their own keys, |k| is the
// largest norm in the K tile, and `distance` is the smallest distance between a query and a key of
// the two tiles.
class AlibiTileSkipper {
 public:
  // The object decides which K/V tiles to skip for the queries of a head at positions [position,
  // position + rows), which are rows [row, row + rows) of call.q. The sequence must contain a key
  // at each of these positions. first_key: packed row of the sequence's first key. The call must
  // have row norms (max_norms).
  __device__ AlibiTileSkipper(const AttentionCall& call, const HeadBias& bias, int head,
                              int position, int rows, int64_t row, int first_key)
      : keys_(call.max_norms + (call.norm_tiles * call.heads + head)),
        heads_(call.heads),
        first_key_(first_key),
        position_(position),
        last_(position + rows - 1),
        queries_(MaxNorm(call.max_norms + head, row, rows) * call.scale * kLog2E),
        own_(MaxNorm(keys_, first_key + position, rows)),
        before_(-bias.At(-1)),
        after_(-bias.At(1)) {}

  // Shrinks `range` so that it begins with the first and ends with the last K/V tile (of tile_keys
  // keys) in which some P may be nonzero. All lanes of a warp must call this function together.
  __device__ void Narrow(KeyRange* range, int tile_keys) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, end = range->end;
    int first = end, last = end;
    for (int base = range->begin; base < end; base += 32 * tile_keys) {
      const int begin = base + lane * tile_keys;
      const uint32_t seen = __ballot_sync(
          0xffffffffu, begin < end && MayContribute(begin, min(begin + tile_keys, end)));
      if (seen == 0) continue;
      first = min(first, base + (__ffs(static_cast<int>(seen)) - 1) * tile_keys);
      last = base + (32 - __clz(static_cast<int>(seen))) * tile_keys;
    }
    range->begin = first;
    range->end = min(last, end);
  }

 private:
  static constexpr float kZeroProbBound = 136.0f;  // 126 plus a margin for rounding

  // Returns false only if P (the softmax weight) is 0 for each of the constructor's queries with
  // each of the keys [begin, end).
  __device__ bool MayContribute(int begin, int end) const {
    const int distance = max(position_ - (end - 1), begin - last_);
    if (distance <= 0) return true;
    const float most = queries_ * (MaxNorm(keys_, first_key_ + begin, end - begin) + own_);
    const float slope = begin > last_ ? after_ : before_;
    return !(most - slope * static_cast<float>(distance) < -kZeroProbBound);  // also true for NaN
  }
  __device__ float MaxNorm(const float* max_norms, int64_t row, int rows) const {
    float most = 0.0f;
    for (int64_t i = row / kNormTileRows; i <= (row + rows - 1) / kNormTileRows; ++i) {
      most = fmaxf(most, __ldcg(max_norms + i * heads_));
    }
    return most;
  }

  const float* const keys_;
  const int heads_, first_key_, position_, last_;
  const float queries_, own_, before_, after_;  // in log2 units
};

}  // namespace quintet::cuda
