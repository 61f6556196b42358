// Packing of weights into LinearWeight, and the dtypes of quantized files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"

namespace quintet {
namespace {

TEST_CASE("e4m3 conversion round-trips, rounds to even and saturates", "[linear]") {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    if ((byte & 0x7f) == 0x7f) {
      CHECK(std::isnan(F8ToF32(byte)));
      continue;
    }
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    const double expected =
        (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10)) *
        (byte & 0x80 ? -1 : 1);
    CHECK(F8ToF32(byte) == expected);
    CHECK(F32ToF8(static_cast<float>(expected)) == byte);
    if ((byte & 0x7f) == 0x7e) continue;
    // The midpoint between two neighbouring e4m3 values rounds to the one with an even code. A
    // number slightly above or below the midpoint rounds to the nearer of the two.
    const auto next = static_cast<uint8_t>(byte + 1);
    const float middle = (F8ToF32(byte) + F8ToF32(next)) / 2;
    CHECK(F32ToF8(middle) == (byte % 2 == 0 ? byte : next));
    CHECK(F32ToF8(middle * 1.0001f) == next);
    CHECK(F32ToF8(middle * 0.9999f) == byte);
  }
  CHECK(F32ToF8(1e30f) == 0x7e);
  CHECK(F32ToF8(-500.0f) == 0xfe);
  CHECK((F32ToF8(std::nanf("")) & 0x7f) == 0x7f);
}

TEST_CASE("packed weights equal the source for every dtype, layout and range", "[linear]") {
  for (WeightType type : {WeightType::kF32, WeightType::kI8, WeightType::kBF16}) {
    if (!WeightTypeSupported(type, nullptr)) continue;
    for (bool gated : {false, true}) {
      for (int64_t k : {1, 5, 64, 131}) {
        const int64_t n = 2 * 150;
        std::vector<float> values = Random(n * k, 5);
        std::vector<uint16_t> bf16(values.size()), f16(values.size());
        std::vector<float> transposed(values.size());
        // The values are exact in bf16 and in f16. Packing them from f32, bf16 or f16 must
        // therefore give the same bytes.
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = BF16ToF32(F32ToBF16(std::round(values[i] * 64) / 64));
          bf16[i] = F32ToBF16(values[i]);
          f16[i] = F32ToF16(values[i]);
          transposed[i % static_cast<size_t>(k) * static_cast<size_t>(n) +
                     i / static_cast<size_t>(k)] = values[i];
        }
        const LinearWeight whole = MakeWeight(values, n, k, type, gated);
        std::vector<float> back(values.size());
        whole.Unpack(0, Tensor::F32(back.data(), {n, k}));
        for (int64_t r = 0; r < n; ++r) {
          float most = 0;
          for (int64_t i = 0; i < k; ++i)
            most = std::max(most, std::fabs(values[static_cast<size_t>(r * k + i)]));
          const float allowed = type == WeightType::kI8 ? most / 253 : 0.0f;
          for (int64_t i = 0; i < k; ++i) {
            const auto at = static_cast<size_t>(r * k + i);
            REQUIRE(std::fabs(back[at] - values[at]) <= allowed);
          }
        }
        const auto same = [&](const char* what, const Tensor& source, int64_t piece) {
          INFO(what << " type " << static_cast<int>(type) << " gated " << gated << " k " << k);
          LinearWeight w = *LinearWeight::Allocate(n, k, type, gated);
          const int64_t half = gated ? n / 2 : n;
          for (int64_t begin = 0; begin < n; begin += half) {
            for (int64_t r = begin; r < begin + half; r += piece) {
              const int64_t end = std::min(begin + half, r + piece);
              w.Pack(r, source.Rows(r, end));
            }
          }
          CHECK(w.bytes() == whole.bytes());
          std::vector<float> other(values.size());
          w.Unpack(0, Tensor::F32(other.data(), {n, k}));
          CHECK(other == back);
        };
        Tensor view = Tensor::F32(transposed.data(), {n, k});
        view.stride = {1, n, 0, 0};
        same("f32", Tensor::F32(values.data(), {n, k}), n);
        same("bf16", Tensor::Dense(bf16.data(), DType::kBF16, {n, k}), n);
        same("f16", Tensor::Dense(f16.data(), DType::kF16, {n, k}), n);
        same("transposed", view, n);
        same("pieces", Tensor::F32(values.data(), {n, k}), 64);
      }
    }
  }
}

TEST_CASE("packing rows quantized for a file equals packing the weight directly", "[linear]") {
  const int64_t n = 70, k = 37;
  std::vector<float> values = Random(n * k, 12);
  std::fill_n(values.begin(), k, 0.0f);
  values[k] = 1e-37f;
  std::vector<int8_t> q(n * k);
  std::vector<float> scales(n);
  const Tensor quantized = Tensor::Dense(q.data(), DType::kI8, {n, k});
  QuantizeRows(Tensor::F32(values.data(), {n, k}), quantized, Tensor::F32(scales.data(), {n}));
  const LinearWeight direct = MakeWeight(values, n, k, WeightType::kI8, false);
  LinearWeight packed = *LinearWeight::Allocate(n, k, WeightType::kI8, false);
  packed.PackQuantized(0, quantized, Tensor::F32(scales.data(), {n}));
  std::vector<float> a(n * k), b(n * k);
  direct.Unpack(0, Tensor::F32(a.data(), {n, k}));
  packed.Unpack(0, Tensor::F32(b.data(), {n, k}));
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  CHECK(*std::max_element(q.begin(), q.end()) == 127);
}

}  // namespace
}  // namespace quintet
