#include "kernels/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// Reference: rotary position embedding as defined in the code of FAT5. Computed in double, except
// that the rotation angle is rounded to float, as in the code of FAT5.
std::vector<double> Reference(const std::vector<float>& x, int64_t heads, int64_t dim,
                              const std::vector<int32_t>& positions, const RotaryArgs& args) {
  std::vector<double> y(x.begin(), x.end());
  const int64_t rd = args.rotary_dim;
  for (size_t r = 0; r < positions.size(); ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 0; c < rd / 2; ++c) {
        const float theta =
            1.0f / std::pow(args.base, static_cast<float>(2 * c) / static_cast<float>(rd));
        const double angle = static_cast<double>(static_cast<float>(positions[r]) * theta);
        double scale = 1.0;
        if (args.xpos_base != 0.0f) {
          const double zeta = (2.0 * static_cast<double>(c) + 0.4 * static_cast<double>(rd)) /
                              (1.4 * static_cast<double>(rd));
          scale =
              std::pow(zeta, args.xpos_sign * static_cast<double>(positions[r] - args.xpos_center) /
                                 double{args.xpos_base});
        }
        const size_t base = static_cast<size_t>((static_cast<int64_t>(r) * heads + h) * dim);
        const size_t a = base + static_cast<size_t>(args.interleaved ? 2 * c : c);
        const size_t b = base + static_cast<size_t>(args.interleaved ? 2 * c + 1 : c + rd / 2);
        y[a] = (double{x[a]} * std::cos(angle) - double{x[b]} * std::sin(angle)) * scale;
        y[b] = (double{x[b]} * std::cos(angle) + double{x[a]} * std::sin(angle)) * scale;
      }
    }
  }
  return y;
}

// Checks Rotary twice: in place on values of type `dtype`, and from an f32 input to a separate
// output of type `dtype`.
void CheckRotary(TestBackend& backend, DType dtype, int64_t dim, RotaryArgs args) {
  const std::vector<int32_t> positions = {0, 1, 2, 77, 500, 1023, 5};
  const int64_t heads = 3;
  const std::vector<float> exact = RandomData(3).Values(7 * heads * dim);
  args.positions = backend.Put(positions, {7});
  for (const bool in_place : {true, false}) {
    const std::vector<float> x = in_place ? RoundedTo(dtype, exact) : exact;
    const std::vector<double> expected = Reference(x, heads, dim, positions, args);
    args.x = backend.Put(x, {7, heads, dim}, in_place ? dtype : DType::kF32);
    args.y = in_place ? args.x : backend.Poisoned(dtype, {7, heads, dim});
    Rotary(args, backend.stream());
    const std::vector<float> y = backend.Floats(args.y);
    for (size_t i = 0; i < y.size(); ++i) {
      REQUIRE(std::abs(double{y[i]} - expected[i]) <
              1e-6 * std::max(1.0, std::abs(expected[i])) +
                  RoundingError(dtype) * std::abs(expected[i]));
    }
  }
}

TEST_CASE("rotary embedding equals the reference: plain, xPos, both pairings, part of the channels",
          "[rotary]") {
  ForEachBackend([](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      for (int64_t dim : Pick<int64_t>({2, 24, 64, 80}, {24})) {
        for (int64_t rotary_dim : {int64_t{0}, dim / 4 * 2, dim}) {
          for (bool interleaved : {false, true}) {
            for (int mode : {0, 1, -1}) {
              RotaryArgs args;
              args.rotary_dim = rotary_dim;
              args.interleaved = interleaved;
              if (mode != 0) {
                args.xpos_base = 512.0f;
                args.xpos_center = 512;
                args.xpos_sign = mode;
              }
              CheckRotary(backend, dtype, dim, args);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("rotary rounds its f32 results to e4m3", "[rotary][fp8_cache]") {
  ForEachBackend([](TestBackend& backend) {
    if (backend.device() == nullptr) return;
    const std::vector<int32_t> positions = {0, 1, 77, 500, 5};
    for (const int64_t rotary_dim : {0, 32, 64}) {
      RotaryArgs args;
      args.rotary_dim = rotary_dim;
      args.positions = backend.Put(positions, {5});
      args.x = backend.Put(RandomData(6).Values(5 * 3 * 64, 700.0f), {5, 3, 64});
      const auto result = [&](DType type) {
        args.y = backend.Poisoned(type, {5, 3, 64});
        Rotary(args, backend.stream());
        return backend.Floats(args.y);
      };
      const std::vector<float> expected = RoundedTo(DType::kF8, result(DType::kF32));
      CHECK(*std::max_element(expected.begin(), expected.end()) == 448.0f);
      CHECK(result(DType::kF8) == expected);
    }
  });
}

TEST_CASE("rotary gives the same bits for any number of threads", "[rotary][cpu]") {
  RotaryArgs args;
  args.rotary_dim = 64;
  const std::vector<float> x = RandomData(4).Values(300 * 2 * 64);
  std::vector<int32_t> positions(300);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> previous;
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    Stream stream(&pool);
    std::vector<float> y = x;
    args.x = args.y = Tensor::F32(y.data(), {300, 2, 64});
    args.positions = Tensor::Dense(positions.data(), DType::kI32, {300});
    Rotary(args, stream);
    if (!previous.empty()) CHECK(std::memcmp(y.data(), previous.data(), y.size() * 4) == 0);
    previous = y;
  }
}

TEST_CASE("rotary does not write to the gaps between strided rows", "[rotary]") {
  ForEachBackend([](TestBackend& backend) {
    RotaryArgs args;
    const Tensor memory = backend.Put(std::vector<float>(40, 1.0f), {40});
    args.x = Tensor::F32(memory.f32(), {2, 1, 8});
    args.x.stride[0] = 20;
    args.y = args.x;
    args.positions = backend.Put(std::vector<int32_t>{3, 4}, {2});
    args.rotary_dim = 8;
    Rotary(args, backend.stream());
    const std::vector<float> x = backend.Floats(memory);
    for (size_t i = 0; i < x.size(); ++i) CHECK((x[i] == 1.0f) == (i % 20 >= 8));
  });
}

TEST_CASE("rotary handles any row offset and writes nothing else", "[rotary]") {
  const std::vector<int64_t> row_offset = {32, 0, 4};  // heads have stride 8
  const auto at = [&](size_t i) {
    return static_cast<size_t>(row_offset[i / 8]) + i / 4 % 2 * 8 + i % 4;
  };
  const std::vector<float> dense = RandomData(2).Values(3 * 2 * 4);
  std::vector<float> spread(48, NAN);
  for (size_t i = 0; i < dense.size(); ++i) spread[at(i)] = dense[i];
  ForEachBackend([&](TestBackend& backend) {
    RotaryArgs args;
    args.positions = backend.Put(std::vector<int32_t>{3, 4, 9}, {3});
    args.rotary_dim = 4;
    args.x = backend.Put(dense, {3, 2, 4});
    args.y = backend.Poisoned(DType::kF32, {3, 2, 4});
    Rotary(args, backend.stream());
    const std::vector<float> expected = backend.Floats(args.y);
    for (const bool in_place : {true, false}) {
      const Tensor memory = backend.Put(in_place ? spread : std::vector<float>(48, NAN), {48});
      args.y = Tensor::F32(memory.f32(), {3, 2, 4});
      args.y.stride[1] = 8;
      if (in_place) args.x = args.y;
      args.row_offset = backend.Plan(row_offset).data();
      Rotary(args, backend.stream());
      const std::vector<float> turned = backend.Floats(memory);
      for (size_t i = 0; i < dense.size(); ++i) CHECK(turned[at(i)] == expected[i]);
      CHECK(std::count_if(turned.begin(), turned.end(), [](float x) { return std::isnan(x); }) ==
            24);
      args.x = backend.Put(dense, {3, 2, 4});
    }
  });
}

}  // namespace
}  // namespace quintet
