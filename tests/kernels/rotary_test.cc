#include "kernels/rotary.h"

#include <cmath>
#include <cstring>

#include "catch2/catch.hpp"
#include "tests/kernels/random_data.h"

namespace quintet {
namespace {

// specs of FAT5 in double, except the angle, which the reference rounds to float.
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

TEST_CASE("rotary embedding, plain and xPos, both pairings, part of the channels", "[rotary]") {
  const std::vector<int32_t> positions = {0, 1, 2, 77, 500, 1023, 5};
  const int64_t heads = 3;
  for (int64_t dim : {2, 24, 64, 80}) {
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
          const std::vector<float> x = RandomData(3).Values(7 * heads * dim);
          const std::vector<double> expected = Reference(x, heads, dim, positions, args);
          std::vector<float> previous;
          for (int threads : {1, 2}) {
            ThreadPool pool(threads);
            Stream stream(&pool);
            std::vector<float> y = x;
            args.x = Tensor::F32(y.data(), {7, heads, dim});
            args.positions = Tensor::Dense(positions.data(), DType::kI32, {7});
            Rotary(args, stream);
            for (size_t i = 0; i < y.size(); ++i) {
              REQUIRE(std::abs(double{y[i]} - expected[i]) <
                      1e-6 * std::max(1.0, std::abs(expected[i])));
            }
            if (!previous.empty()) CHECK(std::memcmp(y.data(), previous.data(), y.size() * 4) == 0);
            previous = y;
          }
        }
      }
    }
  }
}

TEST_CASE("rotary leaves the gaps between strided rows alone", "[rotary]") {
  ThreadPool pool(1);
  Stream stream(&pool);
  std::vector<float> x(40, 1.0f);
  const std::vector<int32_t> positions = {3, 4};
  RotaryArgs args;
  args.x = Tensor::F32(x.data(), {2, 1, 8});
  args.x.stride[0] = 20;
  args.positions = Tensor::Dense(positions.data(), DType::kI32, {2});
  args.rotary_dim = 8;
  Rotary(args, stream);
  for (size_t i = 0; i < x.size(); ++i) CHECK((x[i] == 1.0f) == (i % 20 >= 8));
}

}  // namespace
}  // namespace quintet
