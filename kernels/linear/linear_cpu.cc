// CPU GEMM kernels for the instruction sets that Highway covers, and the epilogue. A kernel
// multiplies rows of x by one panel, the packed weights of 32 output channels. See linear_cpu.h.
#include "kernels/linear/linear_cpu.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/linear_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/linear/activation-inl.h"
#include "kernels/runtime/cpu_features.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "kernels/linear/tile-inl.h"

struct F32Op {
  using D = hn::CappedTag<float, 16>;
  using V = hn::Vec<D>;
  using W = V;
  using X = V;
  static constexpr int kVectors =
      static_cast<int>(cpu::kPanelColumns) / static_cast<int>(hn::MaxLanes(D()));
  static constexpr int kMaxRows = kVectors == 2 ? 12 : kVectors == 4 ? 6 : 4;
  static constexpr int Columns(int rows) {
    return rows == 1 ? kVectors : kVectors == 2 ? 2 : rows <= 3 ? 4 : 2;
  }
  static HWY_INLINE V Zero() { return hn::Zero(D()); }
  static HWY_INLINE V Load(const char* p) {
    return hn::Load(D(), reinterpret_cast<const float*>(p));
  }
  static HWY_INLINE void Store(V v, char* p) { hn::Store(v, D(), reinterpret_cast<float*>(p)); }
  static HWY_INLINE W LoadWeights(const char* p) { return Load(p); }
  static HWY_INLINE void KeepInRegister(W& w) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // works around its register allocator
    asm("" : "+v"(w.raw));
#else
    (void)w;
#endif
  }
  static HWY_INLINE X Broadcast(const char* p) {
    return hn::Set(D(), *reinterpret_cast<const float*>(p));
  }
  static HWY_INLINE V MulAdd(X x, W w, V sum) { return hn::MulAdd(x, w, sum); }
};

void PanelF32(const cpu::PanelGemm& p) { RunPanelGemm<F32Op>(p); }
cpu::PanelKernel KernelF32() { return {&PanelF32, F32Op::kMaxRows, 1}; }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Multiplies int8 panels on CPUs without VPDPBUSD, with exact sums: the even and the odd bytes are
// widened to 16 bits, and VPMADDWD adds their products in pairs to 32 bits, which cannot saturate.
struct I8Op {
  struct W {
#if HWY_TARGET == HWY_AVX2
    __m256i even, odd;
#else
    __m512i even, odd;
#endif
  };
  using X = W;
#if HWY_TARGET == HWY_AVX2
  using V = __m256i;
  static constexpr int kVectors = 4;
  static constexpr int Columns(int rows) { return rows == 1 ? 4 : 2; }
  static HWY_INLINE V Zero() { return _mm256_setzero_si256(); }
  static HWY_INLINE V Load(const char* p) {
    return _mm256_load_si256(reinterpret_cast<const V*>(p));
  }
  static HWY_INLINE void Store(V v, char* p) { _mm256_store_si256(reinterpret_cast<V*>(p), v); }
  static HWY_INLINE W LoadWeights(const char* p) {
    const V w = Load(p);
    return {_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), _mm256_srai_epi16(w, 8)};
  }
  static HWY_INLINE X Broadcast(const char* p) {
    int32_t unit;
    std::memcpy(&unit, p, 4);
    const V x = _mm256_set1_epi32(unit);
    return {_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srli_epi16(x, 8)};
  }
  static HWY_INLINE V MulAdd(const X& x, const W& w, V sum) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x.even, w.even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x.odd, w.odd));
  }
#else
  using V = __m512i;
  static constexpr int kVectors = 2;
  static constexpr int Columns(int) { return 2; }
  static HWY_INLINE V Zero() { return _mm512_setzero_si512(); }
  static HWY_INLINE V Load(const char* p) { return _mm512_load_si512(p); }
  static HWY_INLINE void Store(V v, char* p) { _mm512_store_si512(p, v); }
  static HWY_INLINE W LoadWeights(const char* p) {
    const V w = Load(p);
    return {_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), _mm512_srai_epi16(w, 8)};
  }
  static HWY_INLINE X Broadcast(const char* p) {
    int32_t unit;
    std::memcpy(&unit, p, 4);
    const V x = _mm512_set1_epi32(unit);
    return {_mm512_and_si512(x, _mm512_set1_epi16(255)), _mm512_srli_epi16(x, 8)};
  }
  static HWY_INLINE V MulAdd(const X& x, const W& w, V sum) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x.even, w.even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x.odd, w.odd));
  }
#endif
  static constexpr int kMaxRows = 4;
  static HWY_INLINE void KeepInRegister(const W&) {}
};

void PanelI8(const cpu::PanelGemm& p) { RunPanelGemm<I8Op>(p); }
constexpr int64_t kRowsI8 = I8Op::kMaxRows;
#else
void PanelI8(const cpu::PanelGemm& p) {
  for (int64_t r = 0; r < p.x->rows; ++r) {
    const auto* x = reinterpret_cast<const uint8_t*>(p.x->Block(r));
    auto* sum = reinterpret_cast<int32_t*>(p.tile);
    std::fill(sum, sum + cpu::kPanelColumns, 0);
    for (int64_t g = 0; g < p.groups; ++g) {
      const auto* w = reinterpret_cast<const int8_t*>(p.panel) + g * cpu::kPanelColumns * 4;
      for (int64_t c = 0; c < cpu::kPanelColumns; ++c) {
        for (int64_t i = 0; i < 4; ++i) sum[c] += x[g * 4 + i] * w[c * 4 + i];
      }
    }
    p.finish(sum, r, 1);
  }
}
constexpr int64_t kRowsI8 = 1;
#endif
cpu::PanelKernel KernelI8() { return {&PanelI8, kRowsI8, 1}; }

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// Inputs of the epilogue for one row of x and one panel of W. Each pointer points to an array with
// one value per column of the panel.
struct PanelRow {
  const void* sums = nullptr;        // f32 or i32
  const float* scales = nullptr;     // kI8
  const int32_t* offsets = nullptr;  // kI8
  float factor = 1.0f;               // alpha; kI8: times the row's scale
  const float* bias = nullptr;       // or null
  const float* residual = nullptr;   // or null; gated: 16
};

template <bool kInt8>
HWY_INLINE VF Value(const PanelRow& row, int64_t c) {
  const DF d;
  VF v, factor;
  if constexpr (kInt8) {
    const hn::RebindToSigned<DF> di;
    v = hn::ConvertTo(d, hn::Sub(hn::Load(di, static_cast<const int32_t*>(row.sums) + c),
                                 hn::Load(di, row.offsets + c)));
    factor = hn::Mul(hn::Load(d, row.scales + c), hn::Set(d, row.factor));
  } else {
    v = hn::Load(d, static_cast<const float*>(row.sums) + c);
    factor = hn::Set(d, row.factor);
  }
  if (row.bias == nullptr) return hn::Mul(v, factor);
  return hn::MulAdd(v, factor, hn::Load(d, row.bias + c));
}

// Computes the outputs of one row of x for one panel of W (32 output channels): 32 values of y, or
// 16 if W is gated.
template <bool kInt8, Activation kActivation>
HWY_INLINE void RowOutputs(const PanelRow& row, bool gated, float* out) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t half = cpu::kPanelColumns / 2;
  for (int64_t c = 0; c < (gated ? half : cpu::kPanelColumns); c += lanes) {
    VF v = activation::Apply<kActivation>(d, Value<kInt8>(row, c));
    if (gated) v = hn::Mul(v, Value<kInt8>(row, c + half));
    if (row.residual != nullptr) v = hn::Add(v, hn::LoadU(d, row.residual + c));
    hn::StoreU(v, d, out + c);
  }
}

// Sets out [32] to the bias of each of a panel's 32 channels, in the order of the channels in the
// panel; 0 for channels past the last one. The bias is e.bias plus row `row` of e.row_bias.
void PanelBias(const cpu::Epilogue& e, int64_t panel, int64_t row, float* out) {
  const WeightView& w = *e.w;
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const int64_t begin = panel * columns;
  const int64_t count = std::min(columns, cpu::OutputColumns(w) - begin);
  std::fill(out, out + cpu::kPanelColumns, 0.0f);
  const auto add = [&](const float* bias) {
    if (bias == nullptr) return;
    for (int64_t c = 0; c < count; ++c) out[c] += bias[begin + c];
    if (!w.gated()) return;
    for (int64_t c = 0; c < count; ++c) out[columns + c] += bias[w.n() / 2 + begin + c];
  };
  add(e.bias);
  if (e.row_bias != nullptr) add(e.row_bias + row * e.row_bias_stride);
}

void Scatter(const ScatterOutput& s, int64_t row, int64_t column, const float* values,
             int64_t count) {
  float* base = static_cast<float*>(s.base) + s.row_offset[row];
  for (int64_t done = 0; done < count;) {
    const int64_t c = column + done;
    const int64_t run = std::min(count - done, s.chunk - c % s.chunk);
    std::memcpy(base + s.chunk_offset[c / s.chunk] + c % s.chunk, values + done,
                static_cast<size_t>(run) * 4);
    done += run;
  }
}

template <bool kInt8, Activation kActivation>
void EpilogueRows(const cpu::Epilogue& e, const void* sums, int64_t panel, int64_t row,
                  int64_t rows, int64_t y_column) {
  HWY_ALIGN float bias[cpu::kPanelColumns];
  HWY_ALIGN float values[cpu::kPanelColumns];
  const WeightView& w = *e.w;
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const int64_t column = panel * columns;
  const int64_t count = std::min(columns, cpu::OutputColumns(w) - column);
  PanelRow p;
  p.factor = e.alpha;
  if (e.bias != nullptr || e.row_bias != nullptr) {
    PanelBias(e, panel, row, bias);
    p.bias = bias;
  }
  if constexpr (kInt8) {
    const auto* scales = static_cast<const float*>(w.channels());
    p.scales = scales + panel * cpu::kPanelColumns;
    p.offsets = reinterpret_cast<const int32_t*>(scales + cpu::Panels(w) * cpu::kPanelColumns) +
                panel * cpu::kPanelColumns;
  }
  for (int64_t r = 0; r < rows; ++r) {
    p.sums = static_cast<const char*>(sums) + r * cpu::kPanelColumns * cpu::kUnitBytes;
    if constexpr (kInt8) p.factor = e.alpha * e.row_scales[row + r];
    if (e.row_bias != nullptr && r > 0) PanelBias(e, panel, row + r, bias);
    const float* residual =
        e.residual == nullptr ? nullptr : e.residual + (row + r) * e.residual_stride + column;
    if (e.scatter == nullptr && count == columns) {
      p.residual = residual;
      RowOutputs<kInt8, kActivation>(p, w.gated(), e.y + (row + r) * e.y_stride + y_column);
      continue;
    }
    RowOutputs<kInt8, kActivation>(p, w.gated(), values);
    if (e.scatter != nullptr) {
      Scatter(*e.scatter, row + r, column, values, count);
      continue;
    }
    float* y = e.y + (row + r) * e.y_stride + y_column;
    for (int64_t c = 0; c < count; ++c) {
      y[c] = residual == nullptr ? values[c] : values[c] + residual[c];
    }
  }
}

template <bool kInt8>
void EpilogueActivation(const cpu::Epilogue& e, const void* sums, int64_t panel, int64_t row,
                        int64_t rows, int64_t y_column) {
  switch (e.activation) {
    case Activation::kNone:
      return EpilogueRows<kInt8, Activation::kNone>(e, sums, panel, row, rows, y_column);
    case Activation::kRelu:
      return EpilogueRows<kInt8, Activation::kRelu>(e, sums, panel, row, rows, y_column);
    case Activation::kGeluTanh:
      return EpilogueRows<kInt8, Activation::kGeluTanh>(e, sums, panel, row, rows, y_column);
    case Activation::kGeluErf:
      return EpilogueRows<kInt8, Activation::kGeluErf>(e, sums, panel, row, rows, y_column);
    case Activation::kSilu:
      return EpilogueRows<kInt8, Activation::kSilu>(e, sums, panel, row, rows, y_column);
    case Activation::kTanh:
      return EpilogueRows<kInt8, Activation::kTanh>(e, sums, panel, row, rows, y_column);
  }
}

void RunEpilogueHere(const cpu::Epilogue& e, const void* sums, int64_t panel, int64_t row,
                     int64_t rows, int64_t y_column) {
  if (e.w->type() == WeightType::kI8) {
    EpilogueActivation<true>(e, sums, panel, row, rows, y_column);
  } else {
    EpilogueActivation<false>(e, sums, panel, row, rows, y_column);
  }
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(KernelF32);
HWY_EXPORT(KernelI8);
HWY_EXPORT(RunEpilogueHere);

namespace cpu {

PanelKernel ChoosePanelKernel(WeightType type, int64_t rows) {
  // With few rows, reading the weights takes most of the time. AMX reads them more slowly than
  // VNNI, because a tile load has only 16 cache lines in flight: on one core of a Xeon, AMX reads
  // 14 to 16 GB/s; VNNI reads 20 GB/s with one row, 16.5 GB/s with 8 rows and 12 GB/s with 12 rows.
  // int8 weights therefore use VNNI for up to kMostVnniRows rows. The int8 sums of both are exact,
  // so the choice does not change results.
  constexpr int64_t kMostVnniRows = 8;
  PanelKernel kernel;
  switch (type) {
    case WeightType::kF32:
      return HWY_DYNAMIC_DISPATCH(KernelF32)();
    case WeightType::kBF16:
      // For bf16 weights, AMX is used for any number of rows if the CPU has it. AMX and AVX-512 sum
      // bf16 products in different orders, so if few rows used AVX-512, the result of a row would
      // depend on the number of rows.
      kernel = AmxBf16PanelKernel();
      if (kernel.multiply == nullptr) kernel = Bf16PanelKernel();
      break;
    case WeightType::kF16:  // only on devices
    case WeightType::kF8:
    case WeightType::kI8W8A8:
    case WeightType::kF8W8A8:
      break;
    case WeightType::kI8:
      if (rows > kMostVnniRows) kernel = AmxI8PanelKernel();
      if (kernel.multiply == nullptr) kernel = VnniPanelKernel();
      if (kernel.multiply == nullptr) kernel = HWY_DYNAMIC_DISPATCH(KernelI8)();
      break;
  }
  QT_CHECK(kernel.multiply != nullptr);
  return kernel;
}

void RunEpilogue(const Epilogue& epilogue, const void* sums, int64_t panel, int64_t row,
                 int64_t rows, int64_t y_column) {
  HWY_DYNAMIC_DISPATCH(RunEpilogueHere)(epilogue, sums, panel, row, rows, y_column);
}

int64_t GroupsOfPass(int64_t blocks, int64_t groups) {
  if (blocks == 1) return groups;
  const int64_t most = CpuSecondLevelCacheBytes() / 16 / (kPanelColumns * kUnitBytes);
  const int64_t passes = (groups + most - 1) / most;
  return (groups + passes - 1) / passes;
}

}  // namespace cpu
}  // namespace quintet
#endif
