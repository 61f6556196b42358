// Vector functions that several CPU kernels share. Included once per instruction set: the include
// guard toggles with HWY_TARGET.
#include <cstring>
#include <limits>

#include "hwy/highway.h"

#if defined(QUINTET_KERNELS_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUINTET_KERNELS_VECTOR_MATH_INL_H_
#undef QUINTET_KERNELS_VECTOR_MATH_INL_H_
#else
#define QUINTET_KERNELS_VECTOR_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
constexpr size_t kLanes = hn::MaxLanes(F32());

// Loads the first n elements and sets the other lanes to zero; n is less than the number of lanes.
// Never reads past `from + n`.
HWY_INLINE V32 LoadPartial(const float* from, size_t n) {
  HWY_ALIGN float padded[kLanes] = {};
  std::memcpy(padded, from, n * sizeof(float));
  return hn::Load(F32(), padded);
}

HWY_INLINE void StorePartial(V32 v, float* to, size_t n) {
  HWY_ALIGN float padded[kLanes];
  hn::Store(v, F32(), padded);
  std::memcpy(to, padded, n * sizeof(float));
}

HWY_INLINE float Sum(V32 v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }
HWY_INLINE float Max(V32 v) { return hn::GetLane(hn::MaxOfLanes(F32(), v)); }

// Returns the largest of n values. Ignores NaN; returns -inf if there is no other value.
inline float MaxOf(const float* x, size_t n) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const auto larger = [](V32 v, V32 max)
                          HWY_ATTR { return hn::IfThenElse(hn::Gt(v, max), v, max); };
  auto max0 = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto max1 = max0, max2 = max0, max3 = max0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    max0 = larger(hn::LoadU(d, x + i), max0);
    max1 = larger(hn::LoadU(d, x + i + lanes), max1);
    max2 = larger(hn::LoadU(d, x + i + 2 * lanes), max2);
    max3 = larger(hn::LoadU(d, x + i + 3 * lanes), max3);
  }
  float max = Max(larger(larger(max0, max1), larger(max2, max3)));
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

// Returns e^x for x <= 0, within 1.5 ulp; exactly 1 at 0; exactly 0 below -87, where results would
// be close to subnormal; NaN for NaN. Method: x = n ln 2 + r with |r| <= ln 2 / 2, and
// e^r = 1 + r + r^2 q(r), where q is a minimax polynomial of degree 4 (relative error 3e-9).
HWY_INLINE V32 ExpNegative(V32 x) {
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  // 1.5 * 2^23. Adding this constant to a float rounds the float to the nearest integer and puts
  // that integer into the low bits of the sum.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 is split in two parts, so that n times the first part is exact.
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto q = hn::MulAdd(hn::Set(d, 0x1.6a2406p-10f), r, hn::Set(d, 0x1.1239fep-7f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.5558f2p-5f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.555492p-3f));
  q = hn::MulAdd(q, r, hn::Set(d, 0x1.fffffcp-2f));
  const auto e = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(du, shifted));
  const auto scaled = hn::BitCast(d, hn::Add(hn::BitCast(du, e), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
