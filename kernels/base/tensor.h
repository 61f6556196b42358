// A Tensor is a view: pointer, dtype, up to four dimensions and their strides. It is passed by
// value and owns no memory; the memory belongs to a Buffer (kernels/runtime/buffer.h) or to the
// caller. Every declaration of a Tensor states its shape in a comment.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/base/check.h"

namespace quintet {

// kF8 is e4m3 without infinities (F8_E4M3 of safetensors); the largest finite value is 448.
enum class DType : uint8_t { kF32, kBF16, kF16, kI8, kF8, kI32, kI64 };

constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI8:
    case DType::kF8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

const char* DTypeName(DType dtype);  // "f32", "bf16", "f16", "i8", "f8", "i32", "i64"

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> dim{};
  std::array<int64_t, 4> stride{};  // strides in elements

  // A dense row-major view.
  static Tensor Dense(void* data, DType dtype, std::initializer_list<int64_t> dims);
  static Tensor Dense(const void* data, DType dtype, std::initializer_list<int64_t> dims) {
    return Dense(const_cast<void*>(data), dtype, dims);
  }
  static Tensor F32(const float* data, std::initializer_list<int64_t> dims) {
    return Dense(data, DType::kF32, dims);
  }

  bool defined() const { return data != nullptr; }
  int64_t elements() const;
  bool is_dense() const;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  float* f32() const {
    QT_CHECK(dtype == DType::kF32);
    return as<float>();
  }

  // Rows [begin, end) of the first dimension.
  Tensor Rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of the last dimension.
  Tensor Columns(int64_t begin, int64_t end) const;
  // Views [.., a*b] as [.., a, b], for example a projection as [rows, heads, head_dim].
  Tensor SplitLast(int64_t b) const;
};

// Conversions of single values: round to nearest even, NaN stays NaN.
inline float BF16ToF32(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
uint16_t F32ToBF16(float x);
float F16ToF32(uint16_t x);
uint16_t F32ToF16(float x);
float F8ToF32(uint8_t x);
uint8_t F32ToF8(float x);  // magnitudes above 448 saturate to 448

// Reads n consecutive elements (f32|bf16|f16|i8|f8) into f32.
void ConvertToF32(const void* source, DType dtype, int64_t n, float* destination);
// Writes n f32 values as a float dtype (f32|bf16|f16).
void ConvertFromF32(const float* source, int64_t n, DType dtype, void* destination);

}  // namespace quintet
