// Vector pieces of attention; included once per instruction set.
//
// Two layouts, one arithmetic. Wide: lanes are queries, keys and values are broadcast. Few rows:
// lanes are keys in the scores and channels in the sums. In both, a score is fma over the channels
// in ascending order from zero, then fma(score, scale, bias); a sum is fma over the keys in
// ascending order: a row gets the same bits from either.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attention_bias.h"
#include "kernels/vector_math-inl.h"

#if defined(QUINTET_KERNELS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUINTET_KERNELS_ATTENTION_TILE_INL_H_
#undef QUINTET_KERNELS_ATTENTION_TILE_INL_H_
#else
#define QUINTET_KERNELS_ATTENTION_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kN = static_cast<int64_t>(kLanes);
constexpr int64_t kKeyTile = 64;  // tiles start at multiples of this from the sequence's first key
constexpr int64_t kGroup = 2 * kN;  // queries of the wide layout that are worked on at once
constexpr int kAtOnce =
    HWY_TARGET <= HWY_AVX3 ? 8 : 4;  // keys (or channels) x 2 vectors: accumulators in registers
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
static_assert(kKeyTile % kN == 0);

// to[j][i] = from[i][j] for i < count, j < width; rows of `to` are `stride` apart. Whole vectors
// are written: entries from count up to the next multiple of the lane count repeat the last row.
inline void Transpose(const float* const* from, int64_t count, int64_t width, float* to,
                      int64_t stride) {
  const auto row = [&](int64_t i) { return from[std::min(i, count - 1)]; };
  for (int64_t i0 = 0; i0 < count; i0 += kN) {
    int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
    const F32 d;
    const auto lane = hn::Iota(d, 0.0f);
    for (; j + 4 <= width; j += 4) {
      // Block b of v[k] holds four channels of row i0 + 4 b + k; transposing 4 x 4 inside the
      // blocks does the rest.
      V32 v[4];
      for (int64_t k = 0; k < 4; ++k) {
        v[k] = hn::LoadDup128(d, row(i0 + k) + j);
        for (int64_t lane0 = 4; lane0 < kN; lane0 += 4) {
          v[k] = hn::IfThenElse(hn::Ge(lane, hn::Set(d, static_cast<float>(lane0))),
                                hn::LoadDup128(d, row(i0 + lane0 + k) + j), v[k]);
        }
      }
      const auto even_low = hn::InterleaveLower(d, v[0], v[2]);
      const auto odd_low = hn::InterleaveLower(d, v[1], v[3]);
      const auto even_high = hn::InterleaveUpper(d, v[0], v[2]);
      const auto odd_high = hn::InterleaveUpper(d, v[1], v[3]);
      float* out = to + j * stride + i0;
      hn::StoreU(hn::InterleaveLower(d, even_low, odd_low), d, out);
      hn::StoreU(hn::InterleaveUpper(d, even_low, odd_low), d, out + stride);
      hn::StoreU(hn::InterleaveLower(d, even_high, odd_high), d, out + 2 * stride);
      hn::StoreU(hn::InterleaveUpper(d, even_high, odd_high), d, out + 3 * stride);
    }
#endif
    for (; j < width; ++j) {
      for (int64_t i = 0; i < kN; ++i) to[j * stride + i0 + i] = row(i0 + i)[j];
    }
  }
}

// Rows of `width` floats one after another, each padded with zeros to `stride` (a multiple of the
// lanes).
inline void GatherRows(const float* const* from, int64_t count, int64_t width, float* to,
                       int64_t stride) {
  const F32 d;
  for (int64_t i = 0; i < count; ++i, to += stride) {
    int64_t j = 0;
    for (; j + kN <= width; j += kN) hn::StoreU(hn::LoadU(d, from[i] + j), d, to + j);
    if (j < width) {
      hn::StoreU(LoadPartial(from[i] + j, static_cast<size_t>(width - j)), d, to + j);
    }
  }
}

// FIRE: slope[s] * f + offset[s], s the number of knots below f. Only knots [first, last) can lie
// inside the tile's range of f.
struct FireSegments {
  const float* knots;
  const float* slope;
  const float* offset;
  int64_t first, last;

  FireSegments(const PositionBias& bias, int64_t head, float f_min, float f_max)
      : knots(bias.knots.as<float>()),
        slope(bias.segment_slope.as<float>() + head * bias.segment_slope.stride[0]),
        offset(bias.segment_offset.as<float>() + head * bias.segment_offset.stride[0]) {
    const int64_t n = bias.segment_slope.dim[1] - 1;
    first = std::count_if(knots, knots + n, [f_min](float k) { return k < f_min; });
    last = std::count_if(knots, knots + n, [f_max](float k) { return k < f_max; });
    last = std::max(first, last);
  }

  HWY_INLINE V32 Bias(V32 f) const {
    const F32 d;
    auto segment = hn::Set(d, static_cast<float>(first));
    const auto one = hn::Set(d, 1.0f);
    for (int64_t s = first; s < last; ++s) {
      segment = hn::Add(segment, hn::IfThenElseZero(hn::Lt(hn::Set(d, knots[s]), f), one));
    }
    const auto index = hn::ConvertTo(hn::RebindToSigned<F32>(), segment);
    return hn::MulAdd(hn::GatherIndex(d, slope, index), f, hn::GatherIndex(d, offset, index));
  }
};

// ---- Wide layout: p [keys][kGroup], q_t and o_t [head_dim][kGroup] ----

// p[j] = fma(q . k[j], scale, strip[...]) for keys [j, j + kKeys); strip at offset kKeyTile - 1 - j
// faces the first query.
template <int kKeys, int kVectors>
HWY_INLINE void ScoreKeys(const float* q_t, const float* k, int64_t k_stride, int64_t head_dim,
                          float scale, const float* strip, int64_t j, float* p) {
  const F32 d;
  V32 sum[kKeys][kVectors];
  for (int i = 0; i < kKeys; ++i) {
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  const float* key = k + j * k_stride;
  for (int64_t c = 0; c < head_dim; ++c) {
    V32 q[kVectors];
    for (int v = 0; v < kVectors; ++v) q[v] = hn::LoadU(d, q_t + c * kGroup + v * kN);
    for (int i = 0; i < kKeys; ++i) {
      const auto broadcast = hn::Set(d, key[i * k_stride + c]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(broadcast, q[v], sum[i][v]);
    }
  }
  const auto scale_v = hn::Set(d, scale);
  for (int i = 0; i < kKeys; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const auto bias = hn::LoadU(d, strip + (kKeyTile - 1 - j - i) + v * kN);
      hn::StoreU(hn::MulAdd(sum[i][v], scale_v, bias), d, p + (j + i) * kGroup + v * kN);
    }
  }
}

// o_t[c] = o_t[c] * correction + sum over keys of v[j][c] p[j], for channels [c, c + kChannels).
template <int kChannels, int kVectors>
HWY_INLINE void AddValues(const float* p, const float* v, int64_t v_stride, int64_t keys,
                          const V32* correction, int64_t c, float* o_t) {
  const F32 d;
  V32 sum[kChannels][kVectors];
  for (int i = 0; i < kChannels; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      sum[i][u] = hn::Mul(hn::LoadU(d, o_t + (c + i) * kGroup + u * kN), correction[u]);
    }
  }
  const float* value = v + c;
  for (int64_t j = 0; j < keys; ++j, value += v_stride) {
    V32 weight[kVectors];
    for (int u = 0; u < kVectors; ++u) weight[u] = hn::LoadU(d, p + j * kGroup + u * kN);
    for (int i = 0; i < kChannels; ++i) {
      const auto broadcast = hn::Set(d, value[i]);
      for (int u = 0; u < kVectors; ++u) {
        sum[i][u] = hn::MulAdd(broadcast, weight[u], sum[i][u]);
      }
    }
  }
  for (int i = 0; i < kChannels; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      hn::StoreU(sum[i][u], d, o_t + (c + i) * kGroup + u * kN);
    }
  }
}

// Scores become weights exp(score - max); row_max and row_sum [kVectors lanes] advance. correction:
// what earlier sums shrink by. A row that has seen no key yet keeps max -inf and weights 0.
template <int kVectors>
HWY_INLINE void SoftmaxTile(int64_t keys, float* p, float* row_max, float* row_sum,
                            V32* correction) {
  const F32 d;
  const auto minus_inf = hn::Set(d, kMinusInf);
  for (int u = 0; u < kVectors; ++u) {
    const auto old_max = hn::LoadU(d, row_max + u * kN);
    auto max = old_max;
    float* column = p + u * kN;
    for (int64_t j = 0; j < keys; ++j) max = hn::Max(hn::LoadU(d, column + j * kGroup), max);
    const auto reference = hn::IfThenZeroElse(hn::Eq(max, minus_inf), max);
    correction[u] = ExpNegative(hn::Sub(old_max, reference));
    auto sum = hn::Mul(hn::LoadU(d, row_sum + u * kN), correction[u]);
    for (int64_t j = 0; j < keys; ++j) {
      const auto weight = ExpNegative(hn::Sub(hn::LoadU(d, column + j * kGroup), reference));
      hn::StoreU(weight, d, column + j * kGroup);
      sum = hn::Add(sum, weight);
    }
    hn::StoreU(max, d, row_max + u * kN);
    hn::StoreU(sum, d, row_sum + u * kN);
  }
}

template <int kVectors>
inline void ScoreTile(const float* q_t, const float* k, int64_t k_stride, int64_t head_dim,
                      float scale, const float* strip, int64_t keys, float* p) {
  int64_t j = 0;
  for (; j + kAtOnce <= keys; j += kAtOnce) {
    ScoreKeys<kAtOnce, kVectors>(q_t, k, k_stride, head_dim, scale, strip, j, p);
  }
  for (; j < keys; ++j) {
    ScoreKeys<1, kVectors>(q_t, k, k_stride, head_dim, scale, strip, j, p);
  }
}

template <int kVectors>
inline void AddValueTile(const float* p, const float* v, int64_t v_stride, int64_t keys,
                         const V32* correction, int64_t head_dim, float* o_t) {
  int64_t c = 0;
  for (; c + kAtOnce <= head_dim; c += kAtOnce) {
    AddValues<kAtOnce, kVectors>(p, v, v_stride, keys, correction, c, o_t);
  }
  for (; c < head_dim; ++c) {
    AddValues<1, kVectors>(p, v, v_stride, keys, correction, c, o_t);
  }
}

// ---- Few rows: scores s [rows][kKeyTile], k_t [head_dim][kKeyTile], o [rows][stride] ----

// s[r][j ..] = fma(q[r] . k, scale, s[r][j ..]) for kRows rows and kVectors vectors of keys: s
// holds the bias on entry.
template <int kRows, int kVectors>
HWY_INLINE void ScoreFew(const float* const* q, const float* k_t, int64_t head_dim, float scale,
                         float* s) {
  const F32 d;
  V32 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::Zero(d);
  }
  for (int64_t c = 0; c < head_dim; ++c, k_t += kKeyTile) {
    V32 key[kVectors];
    for (int u = 0; u < kVectors; ++u) key[u] = hn::LoadU(d, k_t + u * kN);
    for (int r = 0; r < kRows; ++r) {
      const auto broadcast = hn::Set(d, q[r][c]);
      for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::MulAdd(broadcast, key[u], sum[r][u]);
    }
  }
  const auto scale_v = hn::Set(d, scale);
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      float* score = s + r * kKeyTile + u * kN;
      hn::StoreU(hn::MulAdd(sum[r][u], scale_v, hn::LoadU(d, score)), d, score);
    }
  }
}

// o[r][c ..] = o[r][c ..] * correction[r] + sum over keys of s[r][j] v[j][c ..] for kRows rows and
// kVectors vectors of channels.
template <int kRows, int kVectors>
HWY_INLINE void AddValuesFew(const float* s, const float* const* v, int64_t keys,
                             const float* correction, int64_t c, float* o, int64_t o_stride) {
  const F32 d;
  V32 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      sum[r][u] = hn::Mul(hn::LoadU(d, o + r * o_stride + c + u * kN), hn::Set(d, correction[r]));
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    V32 value[kVectors];
    for (int u = 0; u < kVectors; ++u) value[u] = hn::LoadU(d, v[j] + c + u * kN);
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, s[r * kKeyTile + j]);
      for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::MulAdd(value[u], weight, sum[r][u]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      hn::StoreU(sum[r][u], d, o + r * o_stride + c + u * kN);
    }
  }
}

// SoftmaxTile for one row whose scores lie in a line; s is padded with -inf to whole vectors.
HWY_INLINE void SoftmaxRow(int64_t keys, float* s, float* row_max, float* row_sum,
                           float* correction) {
  const F32 d;
  auto max_v = hn::Set(d, *row_max);
  for (int64_t j = 0; j < keys; j += kN) max_v = hn::Max(hn::LoadU(d, s + j), max_v);
  const float max = Max(max_v);
  const float reference = max == kMinusInf ? 0.0f : max;
  *correction = hn::GetLane(ExpNegative(hn::Set(d, *row_max - reference)));
  for (int64_t j = 0; j < keys; j += kN) {
    hn::StoreU(ExpNegative(hn::Sub(hn::LoadU(d, s + j), hn::Set(d, reference))), d, s + j);
  }
  float sum = *row_sum * *correction;
  for (int64_t j = 0; j < keys; ++j) sum += s[j];
  *row_max = max;
  *row_sum = sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
