// The online softmax of the Hopper attention kernel, on scores as attention_softmax.cuh has them.
#pragma once

#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {

// Weights 2^(score * scale + shift - base) of a lane's two queries; a query's lanes may have shifts
// of their own. A query's base stays as it is while no weight comes to 2: then a tile's largest
// score is not looked for, which the weights would wait for. Bases are whole numbers: what a weight
// is rounded to does not depend on them.
template <typename T>
class SettledSoftmax {
 public:
  // Whether all queries of the warp have a base, as they need for Weigh.
  __device__ __forceinline__ bool settled() const { return settled_; }

  // Rounded weights, fragments A of sixteen keys each. Returns whether one of the warp is 2 or
  // more, or no number.
  template <int kGroups>
  __device__ __forceinline__ bool Weigh(const float (&scores)[kGroups][4], float scale,
                                        const float (&shift)[2],
                                        uint32_t (&weights)[kGroups / 2][4]) const {
    const float add[2] = {shift[0] - base_[0], shift[1] - base_[1]};
    uint32_t bits = 0;
#pragma unroll
    for (int step = 0; step < kGroups / 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          pair[e] = Exp2(fmaf(scores[2 * step + i / 2][2 * half + e], scale, add[half]));
        }
        weights[step][i] = PackPair<T>(pair[0], pair[1]);
        bits |= weights[step][i];
      }
    }
    constexpr uint32_t kFromTwo = 0x40004000;  // this bit of the exponent is set from 2.0 on
    return __any_sync(0xffffffffu, (bits & kFromTwo) != 0);
  }

  // Bases of queries with a score above theirs rise; what was added up before is to be multiplied
  // by shrink.
  template <int kGroups>
  __device__ __forceinline__ void Rise(const float (&scores)[kGroups][4], float scale,
                                       const float (&shift)[2], float (&shrink)[2]) {
    float largest[2];
    LargestScores(scores, largest);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = fmaf(largest[half], scale, shift[half]);
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
      now = ceilf(fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2)));
      const float before = base_[half];
      if (now > before) base_[half] = now + kAbove;
      shrink[half] = Exp2(before - base_[half]);
    }
    settled_ = __all_sync(0xffffffffu, base_[0] > kNone && base_[1] > kNone);
  }

 private:
  // How far a base is above the largest score when it is set: later scores may be that much larger.
  // In f16 weights must not become small numbers of few bits.
  static constexpr float kAbove = std::is_same_v<T, __half> ? 0.0f : 7.0f;

  // Of a query that has seen no key: hidden scores of -inf weigh nothing with that, either.
  static constexpr float kNone = -3e38f;

  float base_[2] = {kNone, kNone};
  bool settled_ = false;
};

}  // namespace quintet::cuda
