// Packing of weights: LinearWeight::Pack, PackQuantized, Unpack. The layout is described in
// linear_cpu.h.
#include <algorithm>
#include <cmath>

#include "kernels/linear.h"
#include "kernels/linear_cpu.h"

namespace quintet {
namespace {

// Where channel `row` (in file order) lives: byte offset of its unit of group 0, and its packed
// column over all panels.
struct ChannelPlace {
  int64_t offset;
  int64_t column;
};

ChannelPlace Place(const LinearWeight& w, int64_t row) {
  const int64_t half = w.gated() ? w.n() / 2 : 0;
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const bool up = w.gated() && row >= half;
  const int64_t in_half = up ? row - half : row;
  const int64_t panel = in_half / columns;
  const int64_t lane = in_half % columns + (up ? columns : 0);
  const int64_t panel_units = cpu::Groups(w) * cpu::kPanelColumns;
  return {(panel * panel_units + lane) * cpu::kUnitBytes, panel * cpu::kPanelColumns + lane};
}

float Read(const Tensor& w, int64_t row, int64_t i) {
  const int64_t at = row * w.stride[0] + i * w.stride[1];
  switch (w.dtype) {
    case DType::kF32:
      return w.as<float>()[at];
    case DType::kBF16:
      return BF16ToF32(w.as<uint16_t>()[at]);
    default:
      return F16ToF32(w.as<uint16_t>()[at]);
  }
}

// How one channel is quantised: symmetric, its largest magnitude becomes 127.
struct ChannelQuantizer {
  float scale = 0.0f;
  float inverse = 0.0f;

  ChannelQuantizer(const Tensor& w, int64_t row) {
    float most = 0.0f;
    for (int64_t i = 0; i < w.dim[1]; ++i) most = std::max(most, std::fabs(Read(w, row, i)));
    scale = most / 127.0f;
    inverse = most > 1e-35f ? 127.0f / most : 0.0f;
  }
  int8_t operator()(float x) const { return static_cast<int8_t>(std::nearbyint(x * inverse)); }
};

constexpr int64_t kGroupBytes = cpu::kPanelColumns * cpu::kUnitBytes;

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

}  // namespace

void LinearWeight::Pack(int64_t row, const Tensor& w) {
  CheckRange(*this, row, w);
  char* panels = panels_.as<char>();
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    const ChannelPlace place = Place(*this, row + r);
    char* out = panels + place.offset;
    if (type_ == WeightType::kF32) {
      for (int64_t i = 0; i < k_; ++i)
        *reinterpret_cast<float*>(out + i * kGroupBytes) = Read(w, r, i);
    } else if (type_ == WeightType::kBF16) {
      for (int64_t i = 0; i < cpu::Groups(*this) * 2; ++i) {
        reinterpret_cast<uint16_t*>(out + i / 2 * kGroupBytes)[i % 2] =
            i < k_ ? F32ToBF16(Read(w, r, i)) : 0;
      }
    } else {
      const ChannelQuantizer quantize(w, r);
      int32_t sum = 0;
      for (int64_t i = 0; i < cpu::Groups(*this) * 4; ++i) {
        const int8_t q = i < k_ ? quantize(Read(w, r, i)) : int8_t{0};
        reinterpret_cast<int8_t*>(out + i / 4 * kGroupBytes)[i % 4] = q;
        sum += q;
      }
      ChannelScales(*this)[place.column] = quantize.scale;
      ChannelSums(*this)[place.column] = 128 * sum;
    }
  }
}

void QuantizeRows(const Tensor& w, const Tensor& q, const Tensor& scales) {
  QT_CHECK_EQ(w.rank, 2);
  QT_CHECK(q.dtype == DType::kI8 && q.is_dense() && q.dim[0] == w.dim[0] && q.dim[1] == w.dim[1]);
  QT_CHECK_EQ(scales.dim[0], w.dim[0]);
  int8_t* out = q.as<int8_t>();
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    const ChannelQuantizer quantize(w, r);
    scales.f32()[r * scales.stride[0]] = quantize.scale;
    for (int64_t i = 0; i < w.dim[1]; ++i) *out++ = quantize(Read(w, r, i));
  }
}

void LinearWeight::PackQuantized(int64_t row, const Tensor& w, const Tensor& scales) {
  CheckRange(*this, row, w);
  QT_CHECK(type_ == WeightType::kI8 && w.dtype == DType::kI8);
  QT_CHECK_EQ(scales.dim[0], w.dim[0]);
  char* panels = panels_.as<char>();
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    const ChannelPlace place = Place(*this, row + r);
    char* out = panels + place.offset;
    int32_t sum = 0;
    for (int64_t i = 0; i < cpu::Groups(*this) * 4; ++i) {
      const int8_t q = i < k_ ? w.as<int8_t>()[r * w.stride[0] + i * w.stride[1]] : int8_t{0};
      reinterpret_cast<int8_t*>(out + i / 4 * kGroupBytes)[i % 4] = q;
      sum += q;
    }
    ChannelScales(*this)[place.column] = scales.f32()[r * scales.stride[0]];
    ChannelSums(*this)[place.column] = 128 * sum;
  }
}

void LinearWeight::Unpack(int64_t row, const Tensor& w) const {
  QT_CHECK_EQ(w.dim[1], k_);
  QT_CHECK(row >= 0 && row + w.dim[0] <= n_);
  for (int64_t r = 0; r < w.dim[0]; ++r) {
    const ChannelPlace place = Place(*this, row + r);
    const char* in = panels_.as<char>() + place.offset;
    float* out = w.f32() + r * w.stride[0];
    for (int64_t i = 0; i < k_; ++i) {
      float value;
      if (type_ == WeightType::kF32) {
        value = *reinterpret_cast<const float*>(in + i * kGroupBytes);
      } else if (type_ == WeightType::kBF16) {
        value = BF16ToF32(reinterpret_cast<const uint16_t*>(in + i / 2 * kGroupBytes)[i % 2]);
      } else {
        value =
            static_cast<float>(reinterpret_cast<const int8_t*>(in + i / 4 * kGroupBytes)[i % 4]) *
            ChannelScales(*this)[place.column];
      }
      out[i * w.stride[1]] = value;
    }
  }
}

}  // namespace quintet
