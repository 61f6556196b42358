#include <algorithm>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/lora_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kDots = 4;  // dot products that are computed together

// t[j] = dot product of x [k] and row j of a [kCount, k]. The order of each sum depends only on k.
template <int64_t kCount>
void Dots(const float* x, const float* a, size_t k, float* t) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  V32 even[kCount], odd[kCount];
  for (int64_t j = 0; j < kCount; ++j) even[j] = odd[j] = hn::Zero(tag);
  size_t c = 0;
  for (; c + 2 * lanes <= k; c += 2 * lanes) {
    const auto x0 = hn::LoadU(tag, x + c), x1 = hn::LoadU(tag, x + c + lanes);
    for (int64_t j = 0; j < kCount; ++j) {
      const float* const row = a + static_cast<size_t>(j) * k + c;
      even[j] = hn::MulAdd(x0, hn::LoadU(tag, row), even[j]);
      odd[j] = hn::MulAdd(x1, hn::LoadU(tag, row + lanes), odd[j]);
    }
  }
  for (; c < k; c += lanes) {
    const size_t n = std::min(lanes, k - c);
    const auto x0 = LoadPartial(x + c, n);
    for (int64_t j = 0; j < kCount; ++j) {
      const auto product = hn::Mul(x0, LoadPartial(a + static_cast<size_t>(j) * k + c, n));
      even[j] = hn::Add(even[j], hn::IfThenElseZero(hn::FirstN(tag, n), product));
    }
  }
  for (int64_t j = 0; j < kCount; ++j) t[j] = Sum(hn::Add(even[j], odd[j]));
}

// y[c] += the sum over i of t[i] * b[i, c]; b [rank, stride], columns [0, n).
void AddProducts(const float* t, int64_t rank, const float* b, int64_t stride, size_t n, float* y) {
  const F32 tag;
  const size_t lanes = hn::Lanes(tag);
  size_t c = 0;
  for (; c + 2 * lanes <= n; c += 2 * lanes) {
    auto sum0 = hn::Zero(tag), sum1 = sum0;
    for (int64_t i = 0; i < rank; ++i) {
      const auto factor = hn::Set(tag, t[i]);
      sum0 = hn::MulAdd(factor, hn::LoadU(tag, b + i * stride + c), sum0);
      sum1 = hn::MulAdd(factor, hn::LoadU(tag, b + i * stride + c + lanes), sum1);
    }
    hn::StoreU(hn::Add(hn::LoadU(tag, y + c), sum0), tag, y + c);
    hn::StoreU(hn::Add(hn::LoadU(tag, y + c + lanes), sum1), tag, y + c + lanes);
  }
  for (; c < n; c += lanes) {
    const size_t count = std::min(lanes, n - c);
    auto sum = hn::Zero(tag);
    for (int64_t i = 0; i < rank; ++i) {
      sum = hn::MulAdd(hn::Set(tag, t[i]), LoadPartial(b + i * stride + c, count), sum);
    }
    StorePartial(hn::Add(LoadPartial(y + c, count), sum), y + c, count);
  }
}

// Adds the correction of part `p` to the outputs of row `row`. `t` has room for max_rank values.
void AddPart(const AddLoraArgs& args, int64_t row, int64_t p, const LoraPart& factors, float* t) {
  const LoraWeight& w = *args.weight;
  const float* const x = args.x.f32() + row * args.x.stride[0];
  const auto* const a = static_cast<const float*>(factors.a);
  const auto* const b = static_cast<const float*>(factors.b);
  const size_t k = static_cast<size_t>(w.k);
  int64_t i = 0;
  for (; i + kDots <= factors.rank; i += kDots) Dots<kDots>(x, a + i * w.k, k, t + i);
  for (; i < factors.rank; ++i) Dots<1>(x, a + i * w.k, k, t + i);
  const int64_t begin = p * w.part_columns;
  if (args.scatter.base == nullptr) {
    AddProducts(t, factors.rank, b, w.part_columns, static_cast<size_t>(w.part_columns),
                args.y.f32() + row * args.y.stride[0] + begin);
    return;
  }
  const ScatterOutput& s = args.scatter;
  float* const base = static_cast<float*>(s.base) + s.row_offset[row];
  for (int64_t c = 0; c < w.part_columns; c += s.chunk) {
    AddProducts(t, factors.rank, b + c, w.part_columns, static_cast<size_t>(s.chunk),
                base + s.chunk_offset[(begin + c) / s.chunk]);
  }
}

void AddRows(const AddLoraArgs& args, int64_t begin, int64_t end) {
  const LoraWeight& w = *args.weight;
  float* const t = args.scratch.as<float>() + begin * w.parts * w.max_rank;
  for (int64_t row = begin; row < end; ++row) {
    if (args.overwrite) {
      float* const y = args.y.f32() + row * args.y.stride[0];
      std::fill(y, y + w.n(), 0.0f);
    }
    const int32_t adapter = args.adapters[static_cast<size_t>(row)];
    if (adapter < 0) continue;
    for (int64_t p = 0; p < w.parts; ++p) {
      const LoraPart& factors = w.table[adapter * w.stride + p];
      if (factors.rank > 0) AddPart(args, row, p, factors, t);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {

HWY_EXPORT(AddRows);

void AddLora(const AddLoraArgs& args, ThreadPool& pool) {
  QT_CHECK(!args.norm_gamma.defined() && args.kv.cache == nullptr);  // GPU only
  const LoraWeight& w = *args.weight;
  const int64_t row_elements = (w.k + w.part_columns) * w.parts * w.max_rank / 8;
  const auto add_rows = HWY_DYNAMIC_DISPATCH(AddRows);
  ParallelRows(pool, args.x.dim[0], row_elements,
               [&](int64_t begin, int64_t end) { add_rows(args, begin, end); });
}

}  // namespace quintet::cpu
#endif
