// Online softmax with lazy rescaling for the Hopper attention kernel. Accumulator layout as in
// attention/softmax.cuh.
#pragma once

#include "kernels/attention/softmax.cuh"

namespace quintet::cuda {

// P = 2^(score * scale + row_bias - ref_max) of a lane's two queries, where row_bias is one value
// per query. ref_max is the row maximum of an earlier tile plus a margin, and is raised only when
// some P would reach 2. Until then no row maxima are computed, and P does not wait for them.
// ref_max is an integer; hence its value does not affect how P is rounded to T.
template <typename T>
class LazySoftmax {
 public:
  // Whether all queries of the warp have a reference maximum. ComputeProbs requires that they do.
  __device__ __forceinline__ bool has_ref_max() const { return has_ref_max_; }

  // Computes P rounded to T, as A fragments of 16 keys each. Returns whether any P of the warp is
  // >= 2 or NaN; the caller must then call RaiseRefMax and compute P again.
  template <int kGroups>
  __device__ __forceinline__ bool ComputeProbs(const float (&scores)[kGroups][4], float scale,
                                               const float (&row_bias)[2],
                                               uint32_t (&probs)[kGroups / 2][4]) const {
    const float add[2] = {row_bias[0] - ref_max_[0], row_bias[1] - ref_max_[1]};
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
        probs[step][i] = PackPair<T>(pair[0], pair[1]);
        bits |= probs[step][i];
      }
    }
    constexpr uint32_t kFromTwo = 0x40004000;  // exponent bit that is set from 2.0 on
    return __any_sync(0xffffffffu, (bits & kFromTwo) != 0);
  }

  // Raises the ref_max of each query that has a score (in log2 units, with row_bias) above its
  // ref_max. The caller must multiply the query's row sum and P V sums by `rescale`, which is 1 for
  // a query whose ref_max stays.
  template <int kGroups>
  __device__ __forceinline__ void RaiseRefMax(const float (&scores)[kGroups][4], float scale,
                                              const float (&row_bias)[2], float (&rescale)[2]) {
    float largest[2];
    LargestScores(scores, largest);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float now = fmaf(largest[half], scale, row_bias[half]);
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
      now = ceilf(fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2)));
      const float before = ref_max_[half];
      if (now > before) ref_max_[half] = now + kAbove;
      rescale[half] = Exp2(before - ref_max_[half]);
    }
    has_ref_max_ = __all_sync(0xffffffffu, ref_max_[0] > kNone && ref_max_[1] > kNone);
  }

 private:
  // Margin between the row maximum and a new ref_max, in log2 units. With it, slightly higher
  // scores do not raise ref_max again. It is 0 in f16, where it would make small P subnormal and
  // cost them bits.
  static constexpr float kAbove = std::is_same_v<T, __half> ? 0.0f : 7.0f;

  // ref_max of a query that has seen no key: a finite value, because hidden scores (-inf) then give
  // P = 0 (and not NaN).
  static constexpr float kNone = -3e38f;

  float ref_max_[2] = {kNone, kNone};
  bool has_ref_max_ = false;
};

}  // namespace quintet::cuda
