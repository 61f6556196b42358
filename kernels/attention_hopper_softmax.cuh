// Online softmax with lazy rescaling for the Hopper attention kernel. Accumulator layout as in
// attention_softmax.cuh.
#pragma once

#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {

// P = 2^(score * scale + shift - base) of a lane's two queries, where shift is a constant bias that
// may differ between the lanes of a query. `base` is a stale row maximum: it is raised only when
// some P would reach 2. Until then a tile's row maxima are not computed, and P does not wait for
// them. Bases are integers, so the rounding of P to T does not depend on them.
template <typename T>
class SettledSoftmax {
 public:
  // All queries of the warp have a base; Weigh requires it.
  __device__ __forceinline__ bool settled() const { return settled_; }

  // Computes P rounded to T, as A fragments of 16 keys each. Returns whether any P of the warp is
  // >= 2 or NaN; then the caller must call Rise and repeat.
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
    constexpr uint32_t kFromTwo = 0x40004000;  // exponent bit that is set from 2.0 on
    return __any_sync(0xffffffffu, (bits & kFromTwo) != 0);
  }

  // Raises the base of each query that has a score above it. Earlier sums must be multiplied by
  // `shrink`.
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
  // Distance of a new base above the row maximum, so that the following scores need not raise it
  // again. 0 in f16, where P would become subnormal and lose bits.
  static constexpr float kAbove = std::is_same_v<T, __half> ? 0.0f : 7.0f;

  // Base of a query that has seen no key. Finite, so that hidden scores (-inf) give P = 0 with this
  // base too.
  static constexpr float kNone = -3e38f;

  float base_[2] = {kNone, kNone};
  bool settled_ = false;
};

}  // namespace quintet::cuda
