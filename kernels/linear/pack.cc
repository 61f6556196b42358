// Packing of weights: LinearWeight::Pack, PackQuantized, Unpack and QuantizeRows. The layout is
// described in linear_cpu.h.
//
// Source rows are processed in runs of 32 rows (16 rows of a gated weight), which become adjacent
// columns of a panel, and in pieces of k that fit into the L1 cache: each piece is converted row by
// row into units of four bytes, then the units are transposed into the panel.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear/pack.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/linear/weight.h"
#include "kernels/runtime/device.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using PackD = hn::CappedTag<float, 16>;

// Converts n values of a float dtype, `step` elements apart, to f32.
void ReadValues(const void* source, DType dtype, int64_t step, int64_t n, float* HWY_RESTRICT out) {
  if (dtype == DType::kF32) {
    const auto* x = static_cast<const float*>(source);
    for (int64_t i = 0; i < n; ++i) out[i] = x[i * step];
    return;
  }
  const auto* x = static_cast<const uint16_t*>(source);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = BF16ToF32(x[i * step]);
    return;
  }
  const PackD d;
  const hn::Rebind<hwy::float16_t, PackD> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (step == 1) {
    for (; i + lanes <= n; i += lanes) {
      const auto half = hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(x + i));
      hn::StoreU(hn::PromoteTo(d, half), d, out + i);
    }
  }
  for (; i < n; ++i) out[i] = F16ToF32(x[i * step]);
}

// Returns the largest magnitude of the n values x; NaN if any of them is NaN.
float AbsMax(const float* x, int64_t n) {
  const PackD d;
  const hn::RebindToSigned<PackD> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto magnitude = hn::Set(di, 0x7fffffff);
  auto most = hn::Zero(di);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    most = hn::Max(most, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), magnitude));
  }
  float result = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, most)));
  for (; i < n; ++i) {
    const float a = std::fabs(x[i]);
    if (!(a <= result)) result = a;
  }
  return result;
}

void QuantizeValues(const float* HWY_RESTRICT x, int64_t n, float inverse,
                    int8_t* HWY_RESTRICT out) {
  const PackD d;
  const hn::Rebind<int8_t, PackD> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, inverse);
  for (int64_t i = 0; i < n; i += lanes) {
    HWY_ALIGN float part[16] = {};
    HWY_ALIGN int8_t rest[16];
    const bool whole = i + lanes <= n;
    if (!whole) std::copy_n(x + i, n - i, part);
    const auto v = whole ? hn::LoadU(d, x + i) : hn::Load(d, part);
    const auto q = hn::DemoteTo(d8, hn::NearestInt(hn::Mul(v, factor)));
    if (whole) {
      hn::StoreU(q, d8, out + i);
    } else {
      hn::StoreU(q, d8, rest);
      std::copy_n(rest, n - i, out + i);
    }
  }
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(ReadValues);
HWY_EXPORT(AbsMax);
HWY_EXPORT(QuantizeValues);

namespace {

constexpr int64_t kByteGroup = 64;  // as in linear/byte_weights.cuh

// Copies n bytes, n a multiple of kByteGroup, into the order of linear/byte_weights.cuh.
void InterleaveBytes(const uint8_t* in, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; i += kByteGroup) {
    uint32_t words[4][4];  // [lane][product]
    for (int product = 0; product < 4; ++product) {
      for (int lane = 0; lane < 4; ++lane) {
        const uint8_t* const from = in + i + 16 * product + 2 * lane;
        const uint32_t first = from[0] | uint32_t{from[8]} << 8;
        words[lane][product] = first | uint32_t{from[1]} << 16 | uint32_t{from[9]} << 24;
      }
    }
    std::memcpy(out + i, words, sizeof words);
  }
}

constexpr int64_t kUnitsAtOnce = 64;  // groups of one piece
constexpr int64_t kGroupBytes = cpu::kPanelColumns * cpu::kUnitBytes;

// Reads values [begin, begin + n) of one row of w and converts them to f32.
void ReadRow(const Tensor& w, int64_t row, int64_t begin, int64_t n, float* out) {
  const char* source =
      w.as<char>() + (row * w.stride[0] + begin * w.stride[1]) * DTypeBytes(w.dtype);
  HWY_DYNAMIC_DISPATCH(ReadValues)(source, w.dtype, w.stride[1], n, out);
}

// Reads values [begin, begin + n) of each of the rows [row, row + rows) of w, as f32, into out
// [rows, n]. If w is a transposed view, it is read column by column, because a column is then
// contiguous in memory.
void ReadBlock(const Tensor& w, int64_t row, int64_t rows, int64_t begin, int64_t n, float* out) {
  if (w.stride[0] != 1 || w.stride[1] == 1) {
    for (int64_t r = 0; r < rows; ++r) ReadRow(w, row + r, begin, n, out + r * n);
    return;
  }
  float column[cpu::kPanelColumns];
  for (int64_t i = 0; i < n; ++i) {
    const char* source = w.as<char>() + (row + (begin + i) * w.stride[1]) * DTypeBytes(w.dtype);
    HWY_DYNAMIC_DISPATCH(ReadValues)(source, w.dtype, 1, rows, column);
    for (int64_t r = 0; r < rows; ++r) out[r * n + i] = column[r];
  }
}

// Quantisation of one channel: symmetric, its largest magnitude becomes the largest value of the
// type. A channel with a non-finite weight gets the scale NaN.
struct ChannelQuantizer {
  float scale = 0.0f;
  float inverse = 0.0f;

  ChannelQuantizer() = default;
  ChannelQuantizer(float absmax, DType type) {
    const float largest = type == DType::kI8 ? 127.0f : 448.0f;
    const bool finite = std::isfinite(absmax);
    scale = finite ? absmax / largest : std::numeric_limits<float>::quiet_NaN();
    // With a denormal absmax, `inverse` (127 or 448 divided by absmax) would be infinite; such a
    // channel is quantised to zeros.
    inverse = finite && absmax > 1e-35f ? largest / absmax : 0.0f;
  }
  void Quantize(const float* x, int64_t n, int8_t* out) const {
    HWY_DYNAMIC_DISPATCH(QuantizeValues)(x, n, inverse, out);
  }
  void Quantize(const float* x, int64_t n, uint8_t* out) const {
    for (int64_t i = 0; i < n; ++i) out[i] = F32ToF8(x[i] * inverse);
  }
};

// Computes the scale of each of `rows` consecutive rows; rows <= kPanelColumns.
void MakeQuantizers(const Tensor& w, int64_t row, int64_t rows, DType type,
                    ChannelQuantizer* quantizers) {
  constexpr int64_t kPiece = 256;
  float values[cpu::kPanelColumns * kPiece];
  float most[cpu::kPanelColumns] = {};
  for (int64_t begin = 0; begin < w.dim[1]; begin += kPiece) {
    const int64_t n = std::min(kPiece, w.dim[1] - begin);
    ReadBlock(w, row, rows, begin, n, values);
    for (int64_t r = 0; r < rows; ++r) {
      const float a = HWY_DYNAMIC_DISPATCH(AbsMax)(values + r * n, n);
      if (!(a <= most[r])) most[r] = a;
    }
  }
  for (int64_t r = 0; r < rows; ++r) quantizers[r] = ChannelQuantizer(most[r], type);
}

// The place of a channel in the packed layout (linear_cpu.h). offset: bytes from the beginning of
// the first panel to the channel's first four bytes (its weights for the first 1, 2 or 4 values of
// k). column: index of the channel if the columns of all panels are numbered consecutively.
struct ChannelPlace {
  int64_t offset;
  int64_t column;
  int64_t run;  // number of channels from this one on that are adjacent in memory
};

ChannelPlace Place(const LinearWeight& w, int64_t row) {
  const int64_t half = w.gated() ? w.n() / 2 : w.n();
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const bool up = row >= half;
  const int64_t in_half = up ? row - half : row;
  const int64_t panel = in_half / columns;
  const int64_t lane = in_half % columns + (up ? columns : 0);
  const int64_t panel_units = cpu::Groups(w) * cpu::kPanelColumns;
  return {(panel * panel_units + lane) * cpu::kUnitBytes, panel * cpu::kPanelColumns + lane,
          std::min(columns - in_half % columns, half - in_half)};
}

// A unit is four bytes: the values of one row for one group of k. Copies units [rows][kUnitsAtOnce]
// into a panel, transposed: there, the units of all rows for group g are adjacent, from address out
// + g * kGroupBytes on.
void TransposeUnits(const uint32_t* units, int64_t rows, int64_t groups, char* out) {
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t line[cpu::kPanelColumns];
    for (int64_t r = 0; r < rows; ++r) line[r] = units[r * kUnitsAtOnce + g];
    std::memcpy(out + g * kGroupBytes, line, static_cast<size_t>(rows) * 4);
  }
}

float* ChannelScales(const LinearWeight& w) {
  return static_cast<float*>(const_cast<void*>(w.channels()));
}
int32_t* ChannelSums(const LinearWeight& w) {
  return reinterpret_cast<int32_t*>(ChannelScales(w) + cpu::Panels(w) * cpu::kPanelColumns);
}

void CheckRange(const LinearWeight& self, int64_t row, const Tensor& w) {
  QT_CHECK_EQ(w.rank, 2);
  QT_CHECK_EQ(w.dim[1], self.k());
  QT_CHECK(row >= 0 && row + w.dim[0] <= self.n());
}

// Packs the rows of w into `panels`, in runs of rows that become adjacent columns of a panel.
// `fill` converts values to the weight type. Its functions are called in this order for each run:
//   Begin(row, rows)                   row: first row of the run in w
//   Units(row, rows, begin, n, units)  for each piece of k: writes values [begin, begin + n) of all
//                                      rows of the run to units [rows][kUnitsAtOnce]
//   End(rows, column)                  column: packed column of the first row (ChannelPlace)
template <typename Fill>
void PackRuns(const LinearWeight& self, char* panels, int64_t row, const Tensor& w, Fill fill) {
  const WeightType type = self.type();
  const int64_t piece = kUnitsAtOnce * cpu::GroupSize(type);
  uint32_t units[cpu::kPanelColumns * kUnitsAtOnce];
  for (int64_t r = 0; r < w.dim[0];) {
    const ChannelPlace place = Place(self, row + r);
    const int64_t rows = std::min(place.run, w.dim[0] - r);
    fill.Begin(r, rows);
    for (int64_t i = 0; i < self.k(); i += piece) {
      const int64_t n = std::min(piece, self.k() - i);
      const int64_t groups = (n + cpu::GroupSize(type) - 1) / cpu::GroupSize(type);
      if (n % cpu::GroupSize(type) != 0) std::memset(units, 0, sizeof units);
      fill.Units(r, rows, i, n, units);
      TransposeUnits(units, rows, groups,
                     panels + place.offset + i / cpu::GroupSize(type) * kGroupBytes);
    }
    fill.End(rows, place.column);
    r += rows;
  }
}

struct FillF32 {
  const Tensor& w;
  void Begin(int64_t, int64_t) {}
  void Units(int64_t row, int64_t rows, int64_t begin, int64_t n, uint32_t* units) {
    float values[cpu::kPanelColumns * kUnitsAtOnce];
    ReadBlock(w, row, rows, begin, n, values);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(units + r * kUnitsAtOnce, values + r * n, static_cast<size_t>(n) * 4);
    }
  }
  void End(int64_t, int64_t) {}
};

struct FillBf16 {
  const Tensor& w;
  void Begin(int64_t, int64_t) {}
  void Units(int64_t row, int64_t rows, int64_t begin, int64_t n, uint32_t* units) {
    float values[cpu::kPanelColumns * kUnitsAtOnce * 2];
    ReadBlock(w, row, rows, begin, n, values);
    for (int64_t r = 0; r < rows; ++r) {
      ConvertFromF32(values + r * n, n, DType::kBF16, units + r * kUnitsAtOnce);
    }
  }
  void End(int64_t, int64_t) {}
};

// Argument `fill` of PackRuns for int8 weights. Besides the panels, FillI8 stores 128 times the sum
// of each channel's weights. Activations are stored as u8, 128 too large. A dot product with the
// channel is therefore too large by this stored value, and the epilogue subtracts it.
struct FillI8 {
  LinearWeight& self;
  const Tensor& w;
  const Tensor* scales;  // null: w is f32|bf16|f16 and quantised here, else w is i8
  ChannelQuantizer quantizers[cpu::kPanelColumns] = {};
  int32_t sums[cpu::kPanelColumns] = {};

  void Begin(int64_t row, int64_t rows) {
    std::fill(sums, sums + cpu::kPanelColumns, 0);
    if (scales == nullptr) return MakeQuantizers(w, row, rows, DType::kI8, quantizers);
    for (int64_t r = 0; r < rows; ++r) {
      quantizers[r].scale = scales->f32()[(row + r) * scales->stride[0]];
    }
  }
  void Units(int64_t row, int64_t rows, int64_t begin, int64_t n, uint32_t* units) {
    float values[cpu::kPanelColumns * kUnitsAtOnce * 4];
    if (scales == nullptr) ReadBlock(w, row, rows, begin, n, values);
    for (int64_t r = 0; r < rows; ++r) {
      auto* q = reinterpret_cast<int8_t*>(units + r * kUnitsAtOnce);
      if (scales == nullptr) {
        quantizers[r].Quantize(values + r * n, n, q);
      } else {
        const int8_t* source = w.as<int8_t>() + (row + r) * w.stride[0] + begin * w.stride[1];
        if (w.stride[1] == 1) {
          std::memcpy(q, source, static_cast<size_t>(n));
        } else {
          for (int64_t i = 0; i < n; ++i) q[i] = source[i * w.stride[1]];
        }
      }
      int32_t sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += q[i];
      sums[r] += sum;
    }
  }
  void End(int64_t rows, int64_t column) {
    for (int64_t r = 0; r < rows; ++r) {
      ChannelScales(self)[column + r] = quantizers[r].scale;
      ChannelSums(self)[column + r] = 128 * sums[r];
    }
  }
};

}  // namespace

void LinearWeight::Pack(int64_t row, const Tensor& w) {
  CheckRange(*this, row, w);
  if (device_ != nullptr) return WriteRows(row, w);
  char* panels = panel_memory_.as<char>();
  switch (type_) {
    case WeightType::kF16:  // only on devices
    case WeightType::kF8:
    case WeightType::kI8W8A8:
    case WeightType::kF8W8A8:
      break;
    case WeightType::kF32:
      return PackRuns(*this, panels, row, w, FillF32{w});
    case WeightType::kBF16:
      return PackRuns(*this, panels, row, w, FillBf16{w});
    case WeightType::kI8:
      return PackRuns(*this, panels, row, w, FillI8{*this, w, nullptr});
  }
}

// Writes rows of weights to device memory. If they are dense and have the weight type, they are
// written directly; otherwise a converted copy is made on the host first.
void LinearWeight::WriteRows(int64_t row, const Tensor& w) {
  const DType type = WeightDType(type_);
  const int64_t row_bytes = k_ * DTypeBytes(type), rows = w.dim[0];
  if (IsQuantized(type)) {
    std::vector<char> values(static_cast<size_t>(rows * row_bytes));
    std::vector<float> scales(static_cast<size_t>(rows));
    const Tensor q = Tensor::Dense(values.data(), type, {rows, k_});
    QuantizeRows(w, q, Tensor::F32(scales.data(), {rows}));
    return WriteQuantized(row, q, Tensor::F32(scales.data(), {rows}));
  }
  char* place = panel_memory_.as<char>() + row * row_bytes;
  if (w.dtype == type && w.is_dense()) {
    device_->Write(place, w.data, rows * row_bytes);
    return;
  }
  std::vector<float> values(static_cast<size_t>(k_));
  std::vector<char> converted(static_cast<size_t>(rows * row_bytes));
  for (int64_t r = 0; r < rows; ++r) {
    ReadRow(w, r, 0, k_, values.data());
    ConvertFromF32(values.data(), k_, type, converted.data() + r * row_bytes);
  }
  device_->Write(place, converted.data(), rows * row_bytes);
}

// Writes rows of quantised weights to device memory, in the order of linear/byte_weights.cuh.
void LinearWeight::WriteQuantized(int64_t row, const Tensor& w, const Tensor& scales) {
  QT_CHECK(w.is_dense() && scales.is_dense());
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  char* const place = panel_memory_.as<char>() + row * k_;
  const int64_t bytes = w.dim[0] * k_;
  if (k_ % kByteGroup != 0) {
    device_->Write(place, w.data, bytes);
  } else {
    std::vector<uint8_t> ordered(static_cast<size_t>(std::min(bytes, kAtOnce)));
    for (int64_t i = 0; i < bytes; i += kAtOnce) {
      const int64_t n = std::min(kAtOnce, bytes - i);
      InterleaveBytes(w.as<uint8_t>() + i, n, ordered.data());
      device_->Write(place + i, ordered.data(), n);
    }
  }
  device_->Write(channel_memory_.as<float>() + row, scales.data, w.dim[0] * 4);
}

void LinearWeight::PackQuantized(int64_t row, const Tensor& w, const Tensor& scales) {
  CheckRange(*this, row, w);
  QT_CHECK(IsQuantized(type_) && w.dtype == WeightDType(type_));
  QT_CHECK_EQ(scales.dim[0], w.dim[0]);
  if (device_ != nullptr) return WriteQuantized(row, w, scales);
  PackRuns(*this, panel_memory_.as<char>(), row, w, FillI8{*this, w, &scales});
}

void QuantizeRows(const Tensor& w, const Tensor& q, const Tensor& scales) {
  QT_CHECK_EQ(w.rank, 2);
  QT_CHECK(IsQuantized(q.dtype) && q.is_dense());
  QT_CHECK(q.dim[0] == w.dim[0] && q.dim[1] == w.dim[1]);
  QT_CHECK_EQ(scales.dim[0], w.dim[0]);
  constexpr int64_t kPiece = 256;
  float values[kPiece];
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    ChannelQuantizer quantizer;
    MakeQuantizers(w, r, 1, q.dtype, &quantizer);
    scales.f32()[r * scales.stride[0]] = quantizer.scale;
    for (int64_t i = 0; i < w.dim[1]; i += kPiece) {
      const int64_t n = std::min(kPiece, w.dim[1] - i);
      ReadRow(w, r, i, n, values);
      const int64_t at = r * w.dim[1] + i;
      if (q.dtype == DType::kI8) {
        quantizer.Quantize(values, n, q.as<int8_t>() + at);
      } else {
        quantizer.Quantize(values, n, q.as<uint8_t>() + at);
      }
    }
  }
}

void LinearWeight::Unpack(int64_t row, const Tensor& w) const {
  QT_CHECK_EQ(w.dim[1], k_);
  QT_CHECK(row >= 0 && row + w.dim[0] <= n_);
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    const ChannelPlace place = Place(*this, row + r);
    const char* in = panel_memory_.as<char>() + place.offset;
    float* out = w.f32() + r * w.stride[0];
    for (int64_t i = 0; i < k_; ++i) {
      const int64_t size = cpu::GroupSize(type_);
      const char* unit = in + i / size * kGroupBytes;
      float value;
      if (type_ == WeightType::kF32) {
        value = *reinterpret_cast<const float*>(unit);
      } else if (type_ == WeightType::kBF16) {
        value = BF16ToF32(reinterpret_cast<const uint16_t*>(unit)[i % size]);
      } else {
        value = static_cast<float>(reinterpret_cast<const int8_t*>(unit)[i % size]) *
                ChannelScales(*this)[place.column];
      }
      out[i * w.stride[1]] = value;
    }
  }
}

}  // namespace quintet
#endif
