#include <cmath>
#include <span>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/norm_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

// Returns the sum of (x - shift)^2, or of x if !kSquare, over the d values of a row. It has four
// vector accumulators; the order of summation depends only on d.
template <bool kSquare>
float SumRow(const float* x, size_t d, float shift) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  const auto shift_v = hn::Set(tag, shift);
  const auto term = [&](V32 v) HWY_ATTR {
    if (!kSquare) return v;
    const auto centred = hn::Sub(v, shift_v);
    return hn::Mul(centred, centred);
  };
  auto sum0 = hn::Zero(tag), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= d; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term(hn::LoadU(tag, x + i)));
    sum1 = hn::Add(sum1, term(hn::LoadU(tag, x + i + lanes)));
    sum2 = hn::Add(sum2, term(hn::LoadU(tag, x + i + 2 * lanes)));
    sum3 = hn::Add(sum3, term(hn::LoadU(tag, x + i + 3 * lanes)));
  }
  for (; i + lanes <= d; i += lanes) sum0 = hn::Add(sum0, term(hn::LoadU(tag, x + i)));
  if (i < d) {
    const auto tail = term(LoadPartial(x + i, d - i));
    sum1 = hn::Add(sum1, hn::IfThenElseZero(hn::FirstN(tag, d - i), tail));
  }
  return Sum(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

// The last step of a norm: y = (x - mean) * scale * gamma, plus beta if there is one. `scale` is
// the reciprocal of the row's standard deviation (RMSNorm: mean 0, reciprocal of the root mean
// square).
struct Affine {
  float mean, scale;
  const float* gamma;
  const float* beta;  // or null
};

void WriteRow(const float* x, size_t d, const Affine& affine, float* y) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  const auto mean = hn::Set(tag, affine.mean), scale = hn::Set(tag, affine.scale);
  const auto normalised = [&](V32 v, V32 gamma)
                              HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(v, mean), scale), gamma); };
  size_t i = 0;
  for (; i + lanes <= d; i += lanes) {
    auto v = normalised(hn::LoadU(tag, x + i), hn::LoadU(tag, affine.gamma + i));
    if (affine.beta != nullptr) v = hn::Add(v, hn::LoadU(tag, affine.beta + i));
    hn::StoreU(v, tag, y + i);
  }
  if (i < d) {
    const size_t n = d - i;
    auto v = normalised(LoadPartial(x + i, n), LoadPartial(affine.gamma + i, n));
    if (affine.beta != nullptr) v = hn::Add(v, LoadPartial(affine.beta + i, n));
    StorePartial(v, y + i, n);
  }
}

const float* RowOf(const Tensor& x, std::span<const int32_t> rows, int64_t r) {
  return x.as<float>() + (rows.empty() ? r : rows[static_cast<size_t>(r)]) * x.stride[0];
}

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const size_t d = static_cast<size_t>(args.x.dim[1]);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = RowOf(args.x, args.rows, r);
    const float mean_square = SumRow<true>(x, d, 0.0f) / static_cast<float>(d);
    const float scale = 1.0f / std::sqrt(mean_square + args.eps);
    WriteRow(x, d, {0.0f, scale, args.gamma.as<float>(), nullptr},
             args.y.as<float>() + r * args.y.stride[0]);
  }
}

void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const size_t d = static_cast<size_t>(args.x.dim[1]);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = RowOf(args.x, args.rows, r);
    const float mean = SumRow<false>(x, d, 0.0f) / static_cast<float>(d);
    const float variance = SumRow<true>(x, d, mean) / static_cast<float>(d);
    const float scale = 1.0f / std::sqrt(variance + args.eps);
    WriteRow(x, d, {mean, scale, args.gamma.as<float>(), args.beta.as<float>()},
             args.y.as<float>() + r * args.y.stride[0]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormRows);

void RmsNorm(const RmsNormArgs& args, ThreadPool& pool) {
  ParallelRows(pool, args.y.dim[0], args.x.dim[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsNormRows)(args, begin, end);
  });
}

void LayerNorm(const LayerNormArgs& args, ThreadPool& pool) {
  ParallelRows(pool, args.y.dim[0], args.x.dim[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(args, begin, end);
  });
}

}  // namespace quintet::cpu
#endif
