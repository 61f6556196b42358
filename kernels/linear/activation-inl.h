// Activation functions on vectors of f32, accurate to a few ulps. Included once for each Highway
// target.
#if defined(QUINTET_KERNELS_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUINTET_KERNELS_ACTIVATION_INL_H_
#undef QUINTET_KERNELS_ACTIVATION_INL_H_
#else
#define QUINTET_KERNELS_ACTIVATION_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/linear/linear.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace activation {
namespace hn = hwy::HWY_NAMESPACE;

// Evaluates a polynomial by Horner's rule. The coefficients are ordered from the highest power to
// the lowest.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Polynomial(D, V, V sum) {
  return sum;
}
template <class D, class V = hn::Vec<D>, class... Rest>
HWY_INLINE V Polynomial(D d, V x, V sum, float next, Rest... rest) {
  return Polynomial(d, x, hn::MulAdd(sum, x, hn::Set(d, next)), rest...);
}

// Returns exp(x) = 2^n exp(r) with |r| <= ln(2) / 2: 0 for x below about -87.3, infinity for x
// above about 88.7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = Polynomial(d, r, hn::Set(d, 1.9875691500e-4f), 1.3981999507e-3f, 8.3334519073e-3f,
                   4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  // 2^n is computed as the product of two powers, because n may be 128 and 2^128 overflows f32.
  const auto ni = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(ni);
  const auto bias = hn::Set(di, 127);
  const V a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V b = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(ni, half), bias)));
  const V y = hn::Mul(hn::Mul(p, a), b);
  return hn::IfThenElse(hn::Eq(x, x), y, x);  // NaN stays NaN
}

// tanh(x). It is odd, so it is computed for y = |x|: by a polynomial if y < 0.625, otherwise as
// 1 - 2 / (exp(2y) + 1).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V a = hn::Abs(x);
  const V z = hn::Mul(x, x);
  const V one = hn::Set(d, 1.0f);
  const V small =
      hn::MulAdd(hn::Mul(Polynomial(d, z, hn::Set(d, -5.70498872745e-3f), 2.06390887954e-2f,
                                    -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f),
                         z),
                 a, a);
  const V e = Exp(d, hn::Add(a, a));
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(e, one)));
  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, large), x);
}

// erf(x). It is odd, so it is computed for y = |x|: as y P(y^2) if y < 1, otherwise as
// 1 - exp(Q(y)), where Q approximates ln(erfc(y)). For y >= 4 the result is 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  const V a = hn::Min(hn::Abs(x), hn::Set(d, 4.0f));
  const V z = hn::Mul(a, a);
  const V small =
      hn::Mul(a, Polynomial(d, z, hn::Set(d, 7.88249711e-5f), -8.01885499e-4f, 5.18931194e-3f,
                            -2.68543288e-2f, 1.12835975e-1f, -3.76126269e-1f, 1.12837917f));
  const V log =
      Polynomial(d, a, hn::Set(d, 1.61406161e-6f), -4.55906225e-5f, 5.92769539e-4f, -4.74022235e-3f,
                 2.63647174e-2f, -1.09978245e-1f, -6.31937094e-1f, -1.13016668f, 3.03212972e-4f);
  const V large = hn::Sub(hn::Set(d, 1.0f), Exp(d, log));
  const V y = hn::CopySignToAbs(hn::IfThenElse(hn::Lt(a, hn::Set(d, 1.0f)), small, large), x);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

// Returns x / (1 + exp(-t)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gate(D d, V x, V t) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(t))));
}

template <Activation kind, class D, class V = hn::Vec<D>>
HWY_INLINE V Apply(D d, V x) {
  if constexpr (kind == Activation::kRelu) {
    return hn::Max(hn::Zero(d), x);
  } else if constexpr (kind == Activation::kGeluTanh) {
    // GELU (tanh): 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
    const V x2 = hn::Mul(x, x);
    const V u =
        hn::Mul(x, hn::MulAdd(x2, hn::Set(d, 0.0713548162726f), hn::Set(d, 1.59576912161f)));
    return Gate(d, x, u);
  } else if constexpr (kind == Activation::kGeluErf) {
    const V half = hn::Mul(x, hn::Set(d, 0.5f));
    return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.707106781f))), half);
  } else if constexpr (kind == Activation::kSilu) {
    return Gate(d, x, x);
  } else if constexpr (kind == Activation::kTanh) {
    return Tanh(d, x);
  } else {
    return x;
  }
}

}  // namespace activation
}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
