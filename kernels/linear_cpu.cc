// Panel products for the instruction sets that Highway knows, and the epilogue. See linear_cpu.h.
#include "kernels/linear_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "kernels/linear_tile-inl.h"

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
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // the nudge is for its register allocator
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

void PanelF32(const cpu::PanelProduct& p) { RunPanelProduct<F32Op>(p); }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// Exact without VPDPBUSD: even and odd bytes are widened to 16 bits and multiplied in pairs into 32
// bits (VPMADDWD), which cannot saturate.
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

void PanelI8(const cpu::PanelProduct& p) { RunPanelProduct<I8Op>(p); }
#else
void PanelI8(const cpu::PanelProduct& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const auto* x = static_cast<const uint8_t*>(p.x) + r * p.x_row_bytes;
    auto* sum = static_cast<int32_t*>(p.tile) + r * cpu::kPanelColumns;
    std::fill(sum, sum + cpu::kPanelColumns, 0);
    for (int64_t g = 0; g < p.groups; ++g) {
      const auto* w = static_cast<const int8_t*>(p.panel) + g * cpu::kPanelColumns * 4;
      for (int64_t c = 0; c < cpu::kPanelColumns; ++c) {
        for (int64_t i = 0; i < 4; ++i) sum[c] += x[g * 4 + i] * w[c * 4 + i];
      }
    }
  }
}
#endif

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;

// What one row of a panel is made of. Pointers are to the panel's 32 columns.
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

// The panel's outputs of one row, 32 (gated: 16) of them.
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

// The part of bias [n] that belongs to a panel, in packed order and padded with zeros.
void PanelBias(const cpu::Epilogue& e, int64_t panel, float* out) {
  const LinearWeight& w = *e.w;
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const int64_t count = std::min(columns, cpu::OutputColumns(w) - panel * columns);
  std::fill(out, out + cpu::kPanelColumns, 0.0f);
  std::copy_n(e.bias + panel * columns, count, out);
  if (w.gated()) std::copy_n(e.bias + w.n() / 2 + panel * columns, count, out + columns);
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
void EpilogueRows(const cpu::Epilogue& e, const void* tile, int64_t panel, int64_t row,
                  int64_t rows, int64_t y_column) {
  HWY_ALIGN float bias[cpu::kPanelColumns];
  HWY_ALIGN float values[cpu::kPanelColumns];
  const LinearWeight& w = *e.w;
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const int64_t column = panel * columns;
  const int64_t count = std::min(columns, cpu::OutputColumns(w) - column);
  PanelRow p;
  p.factor = e.alpha;
  if (e.bias != nullptr) {
    PanelBias(e, panel, bias);
    p.bias = bias;
  }
  if constexpr (kInt8) {
    const auto* scales = static_cast<const float*>(w.channels());
    p.scales = scales + panel * cpu::kPanelColumns;
    p.offsets = reinterpret_cast<const int32_t*>(scales + cpu::Panels(w) * cpu::kPanelColumns) +
                panel * cpu::kPanelColumns;
  }
  // Stores of a wide product miss the near caches one after the other; asked for ahead they come
  // together.
  constexpr int64_t kAhead = 16;
  for (int64_t r = 0; r < rows; ++r) {
    if (r + kAhead < rows && e.y != nullptr) {
      const float* next = e.y + (row + r + kAhead) * e.y_stride + y_column;
      __builtin_prefetch(next, 1);
      __builtin_prefetch(next + 16, 1);
    }
    p.sums = static_cast<const char*>(tile) + r * cpu::kPanelColumns * cpu::kUnitBytes;
    if constexpr (kInt8) p.factor = e.alpha * e.row_scales[row + r];
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
void EpilogueActivation(const cpu::Epilogue& e, const void* tile, int64_t panel, int64_t row,
                        int64_t rows, int64_t y_column) {
  switch (e.activation) {
    case Activation::kNone:
      return EpilogueRows<kInt8, Activation::kNone>(e, tile, panel, row, rows, y_column);
    case Activation::kRelu:
      return EpilogueRows<kInt8, Activation::kRelu>(e, tile, panel, row, rows, y_column);
    case Activation::kGeluTanh:
      return EpilogueRows<kInt8, Activation::kGeluTanh>(e, tile, panel, row, rows, y_column);
    case Activation::kGeluErf:
      return EpilogueRows<kInt8, Activation::kGeluErf>(e, tile, panel, row, rows, y_column);
    case Activation::kSilu:
      return EpilogueRows<kInt8, Activation::kSilu>(e, tile, panel, row, rows, y_column);
    case Activation::kTanh:
      return EpilogueRows<kInt8, Activation::kTanh>(e, tile, panel, row, rows, y_column);
  }
}

void RunEpilogueHere(const cpu::Epilogue& e, const void* tile, int64_t panel, int64_t row,
                     int64_t rows, int64_t y_column) {
  if (e.w->type() == WeightType::kI8) {
    EpilogueActivation<true>(e, tile, panel, row, rows, y_column);
  } else {
    EpilogueActivation<false>(e, tile, panel, row, rows, y_column);
  }
}

// Symmetric: y = round(x * 127 / absmax) + 128, scale = absmax / 127. Rows that are not finite give
// a NaN scale, so that their outputs are NaN as f32 products would give.
void QuantizeRowHere(const float* HWY_RESTRICT x, int64_t k, uint8_t* HWY_RESTRICT y,
                     float* scale) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint8_t, DF> du8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = k / lanes * lanes;
  HWY_ALIGN float tail[16] = {};
  std::copy_n(x + whole, k - whole, tail);
  // The bits of magnitudes are in the order of their values, NaN above all.
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto most = hn::And(hn::BitCast(di, hn::Load(d, tail)), magnitude);
  for (int64_t i = 0; i < whole; i += lanes) {
    most = hn::Max(most, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), magnitude));
  }
  const float absmax = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, most)));
  const bool finite = std::isfinite(absmax);
  *scale = finite ? absmax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  // The inverse of a denormal maximum would be infinite; such a row counts as zero.
  const VF inverse = hn::Set(d, finite && absmax > 1e-35f ? 127.0f / absmax : 0.0f);
  const auto quantize = [&](VF v) HWY_ATTR {
    return hn::DemoteTo(du8, hn::Add(hn::NearestInt(hn::Mul(v, inverse)), hn::Set(di, 128)));
  };
  for (int64_t i = 0; i < whole; i += lanes) {
    hn::StoreU(quantize(hn::LoadU(d, x + i)), du8, y + i);
  }
  if (whole == k) return;
  HWY_ALIGN uint8_t rest[16];
  hn::StoreU(quantize(hn::Load(d, tail)), du8, rest);
  std::copy_n(rest, (k + 3) / 4 * 4 - whole, y + whole);
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(PanelF32);
HWY_EXPORT(PanelI8);
HWY_EXPORT(RunEpilogueHere);
HWY_EXPORT(QuantizeRowHere);

namespace cpu {

PanelProductFunction ChoosePanelProduct(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return &HWY_DYNAMIC_DISPATCH(PanelF32);
    case WeightType::kBF16:
      // One kernel for every number of rows: the two differ in the order of their sums.
      if (AmxBf16PanelProduct() != nullptr) return AmxBf16PanelProduct();
      break;
    case WeightType::kF16:  // only on devices
      break;
    case WeightType::kI8:
      if (AmxI8PanelProduct() != nullptr) return AmxI8PanelProduct();
      if (VnniPanelProduct() != nullptr) return VnniPanelProduct();
      return &HWY_DYNAMIC_DISPATCH(PanelI8);
  }
  QT_CHECK(Bf16PanelProduct() != nullptr);
  return Bf16PanelProduct();
}

void RunEpilogue(const Epilogue& epilogue, const void* tile, int64_t panel, int64_t row,
                 int64_t rows, int64_t y_column) {
  HWY_DYNAMIC_DISPATCH(RunEpilogueHere)(epilogue, tile, panel, row, rows, y_column);
}

void QuantizeRow(const float* x, int64_t k, uint8_t* y, float* scale) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowHere)(x, k, y, scale);
}

namespace {

// Stride of converted rows: whole cache lines, and never whole pages (linear_tile-inl.h says why).
int64_t ConvertedRowBytes(const LinearWeight& w) {
  const int64_t bytes = (Groups(w) * kUnitBytes + 63) / 64 * 64;
  return bytes % 4096 == 0 ? bytes + 64 : bytes;
}

// f32 rows are read in place, but 7 to 12 of them whole pages apart would take two passes over the
// weights: so few are copied.
constexpr int64_t kCopiedRows = 12;
int64_t CopiedRowBytes(const LinearWeight& w) { return w.k() * 4 + 64; }

}  // namespace

int64_t ActivationBytes(const LinearWeight& w, int64_t rows) {
  if (w.type() == WeightType::kF32) {
    return rows > 6 && w.k() * 4 % 4096 == 0 ? kCopiedRows * CopiedRowBytes(w) : 0;
  }
  return rows * ConvertedRowBytes(w) + (w.type() == WeightType::kI8 ? rows * 4 : 0);
}

Activations ConvertActivations(const LinearWeight& w, const Tensor& x, const Tensor& scratch,
                               ThreadPool& pool) {
  const int64_t rows = x.dim[0];
  const float* source = x.f32();
  Activations a;
  if (w.type() == WeightType::kF32) {
    a.data = source;
    a.row_bytes = x.stride[0] * 4;
    if (rows > 6 && rows <= kCopiedRows && a.row_bytes % 4096 == 0 && scratch.defined() &&
        scratch.elements() * DTypeBytes(scratch.dtype) >= rows * CopiedRowBytes(w)) {
      a.row_bytes = CopiedRowBytes(w);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(scratch.as<char>() + r * a.row_bytes, source + r * x.stride[0],
                    static_cast<size_t>(w.k()) * 4);
      }
      a.data = scratch.data;
    }
    return a;
  }
  QT_CHECK(scratch.defined());
  QT_CHECK_GE(scratch.elements() * DTypeBytes(scratch.dtype), ActivationBytes(w, rows));
  a.row_bytes = ConvertedRowBytes(w);
  auto* data = scratch.as<uint8_t>();
  auto* scales = reinterpret_cast<float*>(data + rows * a.row_bytes);
  a.data = data;
  if (w.type() == WeightType::kI8) a.scales = scales;
  constexpr int64_t kRowsATask = 8;
  pool.ParallelFor((rows + kRowsATask - 1) / kRowsATask, [&](int64_t task, int) {
    for (int64_t r = task * kRowsATask; r < std::min(rows, (task + 1) * kRowsATask); ++r) {
      uint8_t* row = data + r * a.row_bytes;
      if (w.type() == WeightType::kI8) {
        QuantizeRow(source + r * x.stride[0], x.dim[1], row, &scales[r]);
      } else {
        Bf16RoundRow(source + r * x.stride[0], x.dim[1], reinterpret_cast<uint16_t*>(row));
      }
    }
  });
  return a;
}

}  // namespace cpu
}  // namespace quintet
#endif
