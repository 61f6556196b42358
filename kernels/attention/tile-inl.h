// SIMD code shared by both layouts of CPU attention; compiled once per instruction set.
//
// Wide layout: SIMD lanes are queries; keys and values are broadcast. Few-rows layout: SIMD lanes
// are keys in Q K^T and channels in P V. Both use the same arithmetic and give the same bits for a
// row: a score is a chain of fma over the channels in ascending order from zero, then fma(score,
// scale, bias); an output is a chain of fma over the keys in ascending order.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attention/task_cpu.h"
#include "kernels/base/vector_math-inl.h"

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
constexpr int64_t kGroup = 2 * kN;  // queries of the wide layout that are processed together
// Number of keys (in Q K^T) or channels (in P V) that the wide layout (SIMD lanes are queries)
// processes at once, for kGroup queries. kGroup queries fill two SIMD vectors; so every key or
// channel needs two vector registers as accumulators. All these accumulators fit into registers.
constexpr int kAtOnce = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
static_assert(kKeyTile % kN == 0);

// to[j][i] = from[i][j] for i < count, j < width; rows of `to` are `stride` floats apart. Rows of
// `to` are written in whole SIMD vectors: for i from `count` up to the next multiple of the lane
// count, to[j][i] = from[count - 1][j].
inline void Transpose(const float* const* from, int64_t count, int64_t width, float* to,
                      int64_t stride) {
  // Transposes eight rows at a time: a larger number would need more shuffles, and more registers
  // for the pointers to the rows than the CPU has.
  constexpr int64_t kRows = std::min<int64_t>(8, kN);
  for (int64_t i0 = 0; i0 < (count + kN - 1) / kN * kN; i0 += kRows) {
    const float* row[kRows];
    for (int64_t i = 0; i < kRows; ++i) row[i] = from[std::min(i0 + i, count - 1)];
    int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::CappedTag<float, 8> d;
    const auto upper = hn::Ge(hn::Iota(d, 0.0f), hn::Set(d, 4.0f));
    for (; j + 4 <= width; j += 4) {
      // Loads row k of a 4 x 4 transpose: four channels of row k into the lower 128 bits of the
      // vector. If there are eight rows, also loads four channels of row 4 + k into the upper 128
      // bits. The two halves of the vector are transposed independently.
      const auto block = [&](int64_t k) HWY_ATTR {
        const auto low = hn::LoadDup128(d, row[k] + j);
        return kRows == 4 ? low
                          : hn::IfThenElse(upper, hn::LoadDup128(d, row[kRows - 4 + k] + j), low);
      };
      const auto v0 = block(0), v1 = block(1), v2 = block(2), v3 = block(3);
      const auto even_low = hn::InterleaveLower(d, v0, v2);
      const auto odd_low = hn::InterleaveLower(d, v1, v3);
      const auto even_high = hn::InterleaveUpper(d, v0, v2);
      const auto odd_high = hn::InterleaveUpper(d, v1, v3);
      float* out = to + j * stride + i0;
      hn::StoreU(hn::InterleaveLower(d, even_low, odd_low), d, out);
      hn::StoreU(hn::InterleaveUpper(d, even_low, odd_low), d, out + stride);
      hn::StoreU(hn::InterleaveLower(d, even_high, odd_high), d, out + 2 * stride);
      hn::StoreU(hn::InterleaveUpper(d, even_high, odd_high), d, out + 3 * stride);
    }
#endif
    for (; j < width; ++j) {
      for (int64_t i = 0; i < kRows; ++i) to[j * stride + i0 + i] = row[i][j];
    }
  }
}

// Copies a row of head_dim floats and pads it with zeros to whole vectors.
HWY_INLINE void CopyRow(const float* from, int64_t head_dim, float* to) {
  const F32 d;
  int64_t c = 0;
  for (; c + kN <= head_dim; c += kN) hn::StoreU(hn::LoadU(d, from + c), d, to + c);
  if (c < head_dim) {
    hn::StoreU(LoadPartial(from + c, static_cast<size_t>(head_dim - c)), d, to + c);
  }
}

// Copies rows to consecutive rows of PaddedDim(head_dim) floats.
inline void GatherRows(const float* const* from, int64_t count, int64_t head_dim, float* to) {
  for (int64_t i = 0; i < count; ++i) CopyRow(from[i], head_dim, to + i * PaddedDim(head_dim));
}

// FIRE's network is piecewise linear in the normalised distance f: bias = slope[s] * f + offset[s],
// where s is the number of knots below f. In a tile with f in [f_min, f_max], the knots before
// `first` are below every f, and no knot from `last` on is below any f. Only knots [first, last)
// have to be compared with f.
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

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
