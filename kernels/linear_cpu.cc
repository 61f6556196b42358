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
#include "kernels/cpu_features.h"

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
cpu::PanelKernel KernelF32() { return {&PanelF32, F32Op::kMaxRows, 1}; }

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
constexpr int64_t kRowsI8 = I8Op::kMaxRows;
#else
void PanelI8(const cpu::PanelProduct& p) {
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
void EpilogueRows(const cpu::Epilogue& e, const void* sums, int64_t panel, int64_t row,
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
  for (int64_t r = 0; r < rows; ++r) {
    p.sums = static_cast<const char*>(sums) + r * cpu::kPanelColumns * cpu::kUnitBytes;
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

// Symmetric: inverse = 127 / absmax, scale = absmax / 127. Rows that are not finite give a NaN
// scale, so that their outputs are NaN as f32 products would give.
cpu::RowScale ScaleOfRowHere(const float* HWY_RESTRICT x, int64_t k) {
  const DF d;
  const hn::RebindToSigned<DF> di;
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
  cpu::RowScale row;
  row.scale = finite ? absmax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  // The inverse of a denormal maximum would be infinite; such a row counts as zero.
  row.inverse = finite && absmax > 1e-35f ? 127.0f / absmax : 0.0f;
  return row;
}

void QuantizeValuesHere(const float* HWY_RESTRICT x, int64_t n, float inverse,
                        uint8_t* HWY_RESTRICT y) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint8_t, DF> du8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = n / lanes * lanes;
  const VF factor = hn::Set(d, inverse);
  const auto quantize = [&](VF v) HWY_ATTR {
    return hn::DemoteTo(du8, hn::Add(hn::NearestInt(hn::Mul(v, factor)), hn::Set(di, 128)));
  };
  for (int64_t i = 0; i < whole; i += lanes) {
    hn::StoreU(quantize(hn::LoadU(d, x + i)), du8, y + i);
  }
  if (whole == n) return;
  HWY_ALIGN float tail[16] = {};
  std::copy_n(x + whole, n - whole, tail);
  HWY_ALIGN uint8_t rest[16];
  hn::StoreU(quantize(hn::Load(d, tail)), du8, rest);
  std::copy_n(rest, (n + 3) / 4 * 4 - whole, y + whole);
}

#if HWY_TARGET != HWY_SCALAR
// InterleaveUnits by squares of 4; the last one of a side may overlap the one before it.
void InterleaveSquares(const char* HWY_RESTRICT in, int64_t row_bytes, int64_t rows, int64_t groups,
                       char* HWY_RESTRICT out) {
  const auto load = [](const char* p) HWY_ATTR {
    return hn::LoadU(hn::Full128<uint32_t>(), reinterpret_cast<const uint32_t*>(p));
  };
  const auto store = [](hn::Vec<hn::Full128<uint64_t>> v, char* p) HWY_ATTR {
    hn::StoreU(v, hn::Full128<uint64_t>(), reinterpret_cast<uint64_t*>(p));
  };
  const int64_t group_bytes = rows * cpu::kUnitBytes;
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  for (int64_t done = 0; done < groups; done += 4) {
    const int64_t g = std::min(done, groups - 4);
    for (int64_t r0 = 0; r0 < rows; r0 += 4) {
      const int64_t r = std::min(r0, rows - 4);
      const char* from = in + r * row_bytes + g * cpu::kUnitBytes;
      const auto a = load(from), b = load(from + row_bytes);
      const auto c = load(from + 2 * row_bytes), e = load(from + 3 * row_bytes);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      char* to = out + g * group_bytes + r * cpu::kUnitBytes;
      store(hn::InterleaveLower(d64, ab_low, ce_low), to);
      store(hn::InterleaveUpper(d64, ab_low, ce_low), to + group_bytes);
      store(hn::InterleaveLower(d64, ab_high, ce_high), to + 2 * group_bytes);
      store(hn::InterleaveUpper(d64, ab_high, ce_high), to + 3 * group_bytes);
    }
  }
}
#endif

// Units [rows, groups], rows `row_bytes` apart, to [groups, rows].
void InterleaveUnits(const char* HWY_RESTRICT in, int64_t row_bytes, int64_t rows, int64_t groups,
                     char* HWY_RESTRICT out) {
  if (rows == 1) {
    std::memcpy(out, in, static_cast<size_t>(groups * cpu::kUnitBytes));
    return;
  }
#if HWY_TARGET != HWY_SCALAR
  if (rows >= 4 && groups >= 4) return InterleaveSquares(in, row_bytes, rows, groups, out);
#endif
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(out + (g * rows + r) * cpu::kUnitBytes, in + r * row_bytes + g * cpu::kUnitBytes,
                  cpu::kUnitBytes);
    }
  }
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(KernelF32);
HWY_EXPORT(KernelI8);
HWY_EXPORT(RunEpilogueHere);
HWY_EXPORT(ScaleOfRowHere);
HWY_EXPORT(QuantizeValuesHere);
HWY_EXPORT(InterleaveUnits);

namespace cpu {

PanelKernel ChoosePanelKernel(WeightType type) {
  PanelKernel kernel;
  switch (type) {
    case WeightType::kF32:
      return HWY_DYNAMIC_DISPATCH(KernelF32)();
    case WeightType::kBF16:
      // One kernel for every number of rows: the two differ in the order of their sums.
      kernel = AmxBf16PanelKernel();
      if (kernel.multiply == nullptr) kernel = Bf16PanelKernel();
      break;
    case WeightType::kF16:  // only on devices
      break;
    case WeightType::kI8:
      kernel = AmxI8PanelKernel();
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

RowScale ScaleOfRow(const float* x, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(ScaleOfRowHere)(x, k);
}

void QuantizeValues(const float* x, int64_t n, float inverse, uint8_t* y) {
  HWY_DYNAMIC_DISPATCH(QuantizeValuesHere)(x, n, inverse, y);
}

int64_t GroupsOfPass(int64_t blocks, int64_t groups) {
  if (blocks == 1) return groups;
  const int64_t most = CpuSecondLevelCacheBytes() / 16 / (kPanelColumns * kUnitBytes);
  const int64_t passes = (groups + most - 1) / most;
  return (groups + passes - 1) / passes;
}

int64_t MostChunkRows(const LinearWeight& w) {
  constexpr int64_t kFew = 48;  // weights from memory keep a core busy with so many rows
  return std::clamp(CpuSecondLevelCacheBytes() / 2 / (Groups(w) * kUnitBytes), kFew, kChunkRows);
}

int64_t ChunkRows(const LinearWeight& w, int64_t rows) {
  const int64_t most = MostChunkRows(w);
  const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return (rows + chunks - 1) / chunks;
}

namespace {

constexpr int64_t kPieceGroups = 256;  // converted at once

int64_t PaddedGroups(const LinearWeight& w, const PanelKernel& kernel) {
  return (Groups(w) + kernel.run - 1) / kernel.run * kernel.run;
}

// Units [rows, groups], rows `row_bytes` apart, to [groups / run][rows][run].
void ArrangeUnits(const void* units, int64_t row_bytes, int64_t rows, int64_t groups, int64_t run,
                  char* out) {
  const auto* in = static_cast<const char*>(units);
  if (run == 1) return HWY_DYNAMIC_DISPATCH(InterleaveUnits)(in, row_bytes, rows, groups, out);
  const int64_t run_bytes = run * kUnitBytes;
  for (int64_t g = 0; g < groups; g += run) {
    for (int64_t r = 0; r < rows; ++r, out += run_bytes) {
      std::memcpy(out, in + r * row_bytes + g * kUnitBytes, static_cast<size_t>(run_bytes));
    }
  }
}

// One block of rows of f32 or, by pieces, of what i8 and bf16 products take, into its place in `a`.
void PackBlock(const LinearWeight& w, const Tensor& x, const Activations& a, int64_t run,
               int64_t block) {
  const int64_t begin = a.BlockBegin(block), rows = a.BlockRows(block);
  const float* source = x.f32() + begin * x.stride[0];
  char* out = const_cast<char*>(a.Block(block));
  if (w.type() == WeightType::kF32) {
    return ArrangeUnits(source, x.stride[0] * 4, rows, a.groups, run, out);
  }
  const bool int8 = w.type() == WeightType::kI8;
  RowScale scales[kMostBlockRows];
  for (int64_t r = 0; int8 && r < rows; ++r) {
    scales[r] = ScaleOfRow(source + r * x.stride[0], w.k());
    const_cast<float*>(a.scales)[begin + r] = scales[r].scale;
  }
  constexpr int64_t kPieceBytes = kPieceGroups * kUnitBytes;
  alignas(64) char piece[kMostBlockRows * kPieceBytes];
  for (int64_t g = 0; g < a.groups; g += kPieceGroups) {
    const int64_t groups = std::min(kPieceGroups, a.groups - g);
    const int64_t from = g * GroupSize(w.type());
    const int64_t values = std::min(groups * GroupSize(w.type()), w.k() - from);
    const int64_t valid = std::min(groups, Groups(w) - g);
    for (int64_t r = 0; r < rows; ++r) {
      char* units = piece + r * kPieceBytes;
      const float* row = source + r * x.stride[0] + from;
      if (int8) {
        QuantizeValues(row, values, scales[r].inverse, reinterpret_cast<uint8_t*>(units));
      } else {
        Bf16RoundValues(row, values, reinterpret_cast<uint16_t*>(units));
      }
      std::fill(units + valid * kUnitBytes, units + groups * kUnitBytes, '\0');
    }
    ArrangeUnits(piece, kPieceBytes, rows, groups, run, out + g * rows * kUnitBytes);
  }
}

}  // namespace

int64_t ActivationBytes(const LinearWeight& w, int64_t rows) {
  const int64_t units = rows * PaddedGroups(w, ChoosePanelKernel(w.type()));
  return units * kUnitBytes + (w.type() == WeightType::kI8 ? rows * 4 : 0);
}

Activations PackActivations(const LinearWeight& w, const Tensor& x, const Tensor& scratch,
                            ThreadPool& pool) {
  const PanelKernel kernel = ChoosePanelKernel(w.type());
  Activations a;
  a.rows = x.dim[0];
  QT_CHECK_LE(a.rows, kChunkRows);
  QT_CHECK(scratch.defined());
  QT_CHECK_GE(scratch.elements() * DTypeBytes(scratch.dtype), ActivationBytes(w, a.rows));
  a.blocks = (a.rows + kernel.rows - 1) / kernel.rows;
  a.groups = PaddedGroups(w, kernel);
  a.data = scratch.as<char>();
  if (w.type() == WeightType::kI8) {
    a.scales = reinterpret_cast<const float*>(a.data + a.rows * a.groups * kUnitBytes);
  }
  constexpr int64_t kTaskValues = 16384;  // fewer are not worth waking a thread
  const int64_t task_blocks = std::clamp<int64_t>(kTaskValues / (w.k() * kernel.rows), 1, a.blocks);
  pool.ParallelFor((a.blocks + task_blocks - 1) / task_blocks, [&](int64_t task, int) {
    const int64_t end = std::min(a.blocks, (task + 1) * task_blocks);
    for (int64_t block = task * task_blocks; block < end; ++block) {
      PackBlock(w, x, a, kernel.run, block);
    }
  });
  return a;
}

}  // namespace cpu
}  // namespace quintet
#endif
