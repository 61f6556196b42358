#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/log_sum_exp_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Calls body(accumulator, vector) on all vectors of x, with accumulator indices in [0, 4) so that
// the caller can keep four independent sums. The last vector is padded with -inf.
template <typename Body>
HWY_INLINE void ForEachVector(const float* x, size_t n, const Body& body) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (size_t a = 0; a < 4; ++a) body(a, hn::LoadU(d, x + i + a * lanes));
  }
  for (; i + lanes <= n; i += lanes) body(0, hn::LoadU(d, x + i));
  if (i < n) {
    const auto tail = LoadPartial(x + i, n - i);
    body(1, hn::IfThenElse(hn::FirstN(d, n - i), tail, hn::Set(d, kMinusInf)));
  }
}

float SumOfExp(const float* x, size_t n, float reference) {
  const F32 d;
  const auto reference_v = hn::Set(d, reference);
  V32 sum[4];
  for (auto& s : sum) s = hn::Zero(d);
  ForEachVector(x, n, [&](size_t a, V32 v) HWY_ATTR {
    sum[a] = hn::Add(sum[a], ExpNegative(hn::Sub(v, reference_v)));
  });
  return Sum(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
}

// log(sum(exp(x))) in one pass over memory, in blocks that fit in the L1 cache. The sum of a block
// is f32, the sum over blocks is double.
float LogSumExpRow(const float* x, size_t n) {
  constexpr size_t kBlock = 2048;
  float max = kMinusInf;
  double sum = 0.0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    const float block_max = MaxOf(x + begin, count);
    if (block_max > max) {
      sum *= std::exp(static_cast<double>(max) - static_cast<double>(block_max));
      max = block_max;
    }
    sum += SumOfExp(x + begin, count, max == kMinusInf ? 0.0f : max);
  }
  if (max == std::numeric_limits<float>::infinity()) return max;
  return static_cast<float>(static_cast<double>(max) + std::log(sum));
}

void LogSumExpRows(const LogSumExpArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    args.out.as<float>()[r * args.out.stride[0]] =
        LogSumExpRow(args.logits.as<float>() + r * args.logits.stride[0],
                     static_cast<size_t>(args.logits.dim[1]));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {

HWY_EXPORT(LogSumExpRows);

void LogSumExp(const LogSumExpArgs& args, ThreadPool& pool) {
  ParallelRows(pool, args.logits.dim[0], args.logits.dim[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(LogSumExpRows)(args, begin, end);
  });
}

}  // namespace quintet::cpu
#endif
