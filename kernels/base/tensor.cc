#include "kernels/base/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quintet {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI8:
      return "i8";
    case DType::kF8:
      return "f8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
  }
  return "?";
}

Tensor Tensor::Dense(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  QT_CHECK_LE(dims.size(), 4u);
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<int>(dims.size());
  int i = 0;
  for (int64_t d : dims) t.dim[i++] = d;
  int64_t stride = 1;
  for (i = t.rank - 1; i >= 0; --i) {
    t.stride[i] = stride;
    stride *= t.dim[i];
  }
  return t;
}

int64_t Tensor::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim[i];
  return n;
}

bool Tensor::is_dense() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim[i] != 1 && stride[i] != expected) return false;
    expected *= dim[i];
  }
  return true;
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  QT_CHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dim[0]);
  Tensor t = *this;
  t.dim[0] = end - begin;
  t.data = static_cast<char*>(data) + begin * stride[0] * DTypeBytes(dtype);
  return t;
}

Tensor Tensor::Columns(int64_t begin, int64_t end) const {
  QT_CHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dim[rank - 1]);
  Tensor t = *this;
  t.dim[rank - 1] = end - begin;
  t.data = static_cast<char*>(data) + begin * stride[rank - 1] * DTypeBytes(dtype);
  return t;
}

Tensor Tensor::SplitLast(int64_t b) const {
  QT_CHECK(rank >= 1 && rank < 4 && b > 0);
  QT_CHECK_EQ(dim[rank - 1] % b, 0);
  Tensor t = *this;
  t.rank = rank + 1;
  t.dim[rank - 1] = dim[rank - 1] / b;
  t.stride[rank - 1] = stride[rank - 1] * b;
  t.dim[rank] = b;
  t.stride[rank] = stride[rank - 1];
  return t;
}

uint16_t F32ToBF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float F16ToF32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = (x >> 10) & 31;
  const uint32_t mantissa = x & 1023;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

uint16_t F32ToF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and above
  if (bits < 0x38800000u) {                                              // subnormal results
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  bits -= 112u << 23;
  bits += 0xfffu + ((bits >> 13) & 1);
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(bits >> 13));
}

float F8ToF32(uint8_t x) {
  if ((x & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  // Move the bits of the e4m3 value into place for f32. The exponent bias of e4m3 is 7 and that of
  // f32 is 127, so the value is then multiplied by 2^120.
  const uint32_t bits = static_cast<uint32_t>(x & 0x80) << 24 | static_cast<uint32_t>(x & 0x7f)
                                                                    << 20;
  float y;
  std::memcpy(&y, &bits, 4);
  return y * 0x1p120f;
}

uint8_t F32ToF8(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
  if (bits >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7e);  // 448 and above
  if (bits < 0x3c800000u) {                                           // subnormal results
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)));
  }
  bits -= 120u << 23;
  bits += 0x7ffffu + ((bits >> 20) & 1);
  return static_cast<uint8_t>(sign | static_cast<uint8_t>(bits >> 20));
}

void ConvertToF32(const void* source, DType dtype, int64_t n, float* destination) {
  if (n == 0) return;  // the pointers may be null, which memcpy forbids
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, static_cast<size_t>(n) * 4);
    return;
  }
  if (dtype == DType::kI8) {
    std::copy_n(static_cast<const int8_t*>(source), n, destination);
    return;
  }
  if (dtype == DType::kF8) {
    std::transform(static_cast<const uint8_t*>(source), static_cast<const uint8_t*>(source) + n,
                   destination, F8ToF32);
    return;
  }
  QT_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  const auto* bits = static_cast<const uint16_t*>(source);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) destination[i] = BF16ToF32(bits[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) destination[i] = F16ToF32(bits[i]);
  }
}

void ConvertFromF32(const float* source, int64_t n, DType dtype, void* destination) {
  if (n == 0) return;  // as above
  if (dtype == DType::kF32) {
    std::memcpy(destination, source, static_cast<size_t>(n) * 4);
    return;
  }
  QT_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  auto* bits = static_cast<uint16_t*>(destination);
  for (int64_t i = 0; i < n; ++i) {
    bits[i] = dtype == DType::kBF16 ? F32ToBF16(source[i]) : F32ToF16(source[i]);
  }
}

}  // namespace quintet
