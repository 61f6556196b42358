#include <algorithm>
#include <cmath>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/norm_sums_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

float SumOfSquares(const float* x, size_t d) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  auto sum0 = hn::Zero(tag), sum1 = sum0;
  size_t i = 0;
  for (; i + 2 * lanes <= d; i += 2 * lanes) {
    const auto a = hn::LoadU(tag, x + i), b = hn::LoadU(tag, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float tail = 0.0f;
  for (; i < d; ++i) tail += x[i] * x[i];
  return Sum(hn::Add(sum0, sum1)) + tail;
}

// y += x * scale * gamma
void AddScaled(const float* x, const float* gamma, size_t d, float scale, float* y) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  const auto scale_v = hn::Set(tag, scale);
  size_t i = 0;
  for (; i + lanes <= d; i += lanes) {
    const auto normed = hn::Mul(hn::Mul(hn::LoadU(tag, x + i), scale_v), hn::LoadU(tag, gamma + i));
    hn::StoreU(hn::Add(hn::LoadU(tag, y + i), normed), tag, y + i);
  }
  for (; i < d; ++i) y[i] += x[i] * scale * gamma[i];
}

void SumRanges(const RmsNormSumsArgs& args, int64_t begin, int64_t end) {
  const size_t d = static_cast<size_t>(args.x.dim[1]);
  for (int64_t i = begin; i < end; ++i) {
    const RowRange range = args.ranges[static_cast<size_t>(i)];
    float* y = args.y.f32() + i * args.y.stride[0];
    std::fill_n(y, d, 0.0f);
    for (int64_t r = range.begin; r < range.end; ++r) {
      const float* x = args.x.f32() + r * args.x.stride[0];
      const float mean_square = SumOfSquares(x, d) / static_cast<float>(d);
      AddScaled(x, args.gamma.f32(), d, 1.0f / std::sqrt(mean_square + args.eps), y);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {

HWY_EXPORT(SumRanges);

void RmsNormSums(const RmsNormSumsArgs& args, ThreadPool& pool) {
  // Ranges usually have equal lengths: that of the first one estimates the work.
  const int64_t rows = args.ranges[0].end - args.ranges[0].begin;
  ParallelRows(pool, static_cast<int64_t>(args.ranges.size()), rows * args.x.dim[1],
               [&](int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(SumRanges)(args, begin, end);
               });
}

}  // namespace quintet::cpu
#endif
