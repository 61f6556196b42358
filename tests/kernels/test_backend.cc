#include "tests/kernels/test_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/catch.h"

namespace quintet {
namespace {

// Returns `values` as elements of a float dtype.
std::vector<char> ElementsOf(const std::vector<float>& values, DType dtype) {
  const auto n = static_cast<int64_t>(values.size());
  std::vector<char> bytes(static_cast<size_t>(n * DTypeBytes(dtype)));
  if (dtype == DType::kF8) {
    std::transform(values.begin(), values.end(), bytes.begin(),
                   [](float x) { return static_cast<char>(F32ToF8(x)); });
  } else {
    ConvertFromF32(values.data(), n, dtype, bytes.data());
  }
  return bytes;
}

}  // namespace

Tensor TestBackend::PutBytes(const void* bytes, int64_t count, DType dtype,
                             std::initializer_list<int64_t> dims) {
  void* data = Allocate(count);
  CopyIn(data, bytes, count);
  const Tensor t = Tensor::Dense(data, dtype, dims);
  QT_CHECK_LE(t.elements() * DTypeBytes(dtype), count);
  return t;
}

Tensor TestBackend::Put(const std::vector<float>& values, std::initializer_list<int64_t> dims,
                        DType dtype) {
  const std::vector<char> bytes = ElementsOf(values, dtype);
  return PutBytes(bytes.data(), Bytes(bytes), dtype, dims);
}

Tensor TestBackend::Put(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims) {
  return Tensor::Dense(Plan(values).data(), DType::kI32, dims);
}

Tensor TestBackend::Poisoned(DType dtype, std::initializer_list<int64_t> dims) {
  const int64_t bytes =
      Tensor::Dense(static_cast<void*>(nullptr), dtype, dims).elements() * DTypeBytes(dtype);
  const bool integer = dtype == DType::kI8 || dtype == DType::kI32 || dtype == DType::kI64;
  const std::vector<char> poison(static_cast<size_t>(bytes), integer ? '\x55' : '\xff');
  return PutBytes(poison.data(), bytes, dtype, dims);
}

Tensor TestBackend::Scratch(int64_t bytes) {
  return bytes == 0 ? Tensor() : Poisoned(DType::kI8, {bytes});
}

std::vector<char> TestBackend::Elements(const Tensor& t) {
  const int64_t size = DTypeBytes(t.dtype), n = t.elements();
  std::vector<char> elements(static_cast<size_t>(n * size));
  if (n == 0) return elements;
  int64_t extent = 1;
  for (int i = 0; i < t.rank; ++i) extent += (t.dim[i] - 1) * t.stride[i];
  std::vector<char> memory(static_cast<size_t>(extent * size));
  CopyOut(memory.data(), t.data, extent * size);
  for (int64_t e = 0; e < n; ++e) {
    int64_t offset = 0, rest = e;
    for (int i = t.rank - 1; i >= 0; --i) {
      offset += rest % t.dim[i] * t.stride[i];
      rest /= t.dim[i];
    }
    std::memcpy(elements.data() + e * size, memory.data() + offset * size,
                static_cast<size_t>(size));
  }
  return elements;
}

std::vector<float> TestBackend::Floats(const Tensor& t) {
  const std::vector<char> elements = Elements(t);
  std::vector<float> values(static_cast<size_t>(t.elements()));
  ConvertToF32(elements.data(), t.dtype, t.elements(), values.data());
  return values;
}

std::vector<int32_t> TestBackend::Ints(const Tensor& t) {
  QT_CHECK(t.dtype == DType::kI32);
  const std::vector<char> elements = Elements(t);
  std::vector<int32_t> values(static_cast<size_t>(t.elements()));
  if (!values.empty()) std::memcpy(values.data(), elements.data(), elements.size());
  return values;
}

bool Brief() {
  static const bool brief = [] {
    const char* value = std::getenv("QUINTET_BRIEF_TESTS");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return brief;
}

std::vector<float> RoundedTo(DType dtype, std::vector<float> values) {
  const std::vector<char> bytes = ElementsOf(values, dtype);
  ConvertToF32(bytes.data(), dtype, static_cast<int64_t>(values.size()), values.data());
  return values;
}

double RoundingError(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

}  // namespace quintet
