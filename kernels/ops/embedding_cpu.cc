#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/embedding_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/base/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE V32 LoadAsF32(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE V32 LoadAsF32(const hwy::bfloat16_t* from) {
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, F32>(), from));
}
HWY_INLINE V32 LoadAsF32(const hwy::float16_t* from) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // no F16C; Highway's emulation is wrong for infinity
  HWY_ALIGN float converted[kLanes];
  ConvertToF32(from, DType::kF16, static_cast<int64_t>(kLanes), converted);
  return hn::Load(F32(), converted);
#else
  return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), from));
#endif
}

// Computes y = scale * row, or y += row if kAdd; `row` and y have d values. Values at the end that
// do not fill a vector are copied to a zero-padded vector first.
template <bool kAdd, typename T>
void WriteRow(const T* row, int64_t d, float scale, float* y) {
  const F32 tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(tag));
  const auto scale_v = hn::Set(tag, scale);
  const auto combined = [&](V32 value, V32 before) HWY_ATTR {
    return kAdd ? hn::Add(before, value) : hn::Mul(value, scale_v);
  };
  int64_t i = 0;
  for (; i + lanes <= d; i += lanes) {
    hn::StoreU(combined(LoadAsF32(row + i), hn::LoadU(tag, y + i)), tag, y + i);
  }
  if (i < d) {
    const size_t n = static_cast<size_t>(d - i);
    HWY_ALIGN T padded[kLanes] = {};
    std::memcpy(padded, row + i, n * sizeof(T));
    StorePartial(combined(LoadAsF32(padded), LoadPartial(y + i, n)), y + i, n);
  }
}

template <bool kAdd>
void WriteTableRow(const Tensor& table, int64_t number, float scale, float* y) {
  const int64_t d = table.dim[1], offset = number * table.stride[0];
  switch (table.dtype) {
    case DType::kBF16:
      return WriteRow<kAdd>(table.as<hwy::bfloat16_t>() + offset, d, scale, y);
    case DType::kF16:
      return WriteRow<kAdd>(table.as<hwy::float16_t>() + offset, d, scale, y);
    default:
      return WriteRow<kAdd>(table.as<float>() + offset, d, scale, y);
  }
}

void EmbeddingRows(const EmbeddingArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    float* y = args.y.as<float>() + r * args.y.stride[0];
    const int32_t given = args.ids.as<int32_t>()[r * args.ids.stride[0]];
    const int32_t id = given >= 0 ? given : args.next_tokens.as<int32_t>()[-1 - given];
    WriteTableRow<false>(args.table, id, args.scale, y);
    if (args.history.defined() && args.slots[static_cast<size_t>(r)] >= 0) {
      args.history.as<int32_t>()[args.slots[static_cast<size_t>(r)]] = id;
    }
    if (args.positions.defined()) {
      const int64_t position = args.positions.as<int32_t>()[r * args.positions.stride[0]];
      WriteTableRow<true>(args.position_table, position, 1.0f, y);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {

HWY_EXPORT(EmbeddingRows);

void Embedding(const EmbeddingArgs& args, ThreadPool& pool) {
  ParallelRows(pool, args.y.dim[0], args.y.dim[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EmbeddingRows)(args, begin, end);
  });
}

}  // namespace quintet::cpu
#endif
