#include "kernels/norm.h"

#include <cmath>
#include <cstring>

#include "catch2/catch.hpp"
#include "tests/kernels/random_data.h"

namespace quintet {
namespace {

// Rows of x stride apart; mean 0 in RMS norm.
std::vector<double> Reference(const std::vector<float>& x, int64_t rows, int64_t d, int64_t stride,
                              bool centred, float eps, const std::vector<float>& gamma,
                              const std::vector<float>& beta) {
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * stride;
    double mean = 0, variance = 0;
    for (int64_t i = 0; centred && i < d; ++i) mean += double{row[i]} / static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) {
      variance += (double{row[i]} - mean) * (double{row[i]} - mean) / static_cast<double>(d);
    }
    for (int64_t i = 0; i < d; ++i) {
      const size_t c = static_cast<size_t>(i);
      y.push_back((double{row[i]} - mean) / std::sqrt(variance + double{eps}) * double{gamma[c]} +
                  (centred ? double{beta[c]} : 0.0));
    }
  }
  return y;
}

struct NormCase {
  bool centred;
  int64_t rows, d;
  float offset;  // added to x: a large mean is what a one-pass variance cannot bear
};

void CheckNorm(const NormCase& c) {
  RandomData random(static_cast<uint32_t>(c.d * 2 + c.centred));
  const int64_t stride = c.d + 3;
  std::vector<float> x = random.Values(c.rows * stride);
  for (float& v : x) v += c.offset;
  const std::vector<float> gamma = random.Values(c.d), beta = random.Values(c.d);
  const std::vector<double> expected =
      Reference(x, c.rows, c.d, stride, c.centred, 1e-5f, gamma, beta);
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    Stream stream(&pool);
    const auto run = [&](Tensor in, Tensor out) {
      const Tensor g = Tensor::F32(gamma.data(), {c.d}), b = Tensor::F32(beta.data(), {c.d});
      if (c.centred) {
        LayerNorm({.x = in, .gamma = g, .beta = b, .y = out, .eps = 1e-5f}, stream);
      } else {
        RmsNorm({.x = in, .gamma = g, .y = out, .eps = 1e-5f}, stream);
      }
    };
    Tensor in = Tensor::F32(x.data(), {c.rows, c.d});
    in.stride[0] = stride;
    std::vector<float> y(static_cast<size_t>(c.rows * c.d));
    const Tensor out = Tensor::F32(y.data(), {c.rows, c.d});
    run(in, out);
    const double tolerance = 3e-6 * (1.0 + 2.0 * std::abs(double{c.offset}));
    for (size_t i = 0; i < y.size(); ++i) REQUIRE(std::abs(double{y[i]} - expected[i]) < tolerance);
    // Alone, and in place: the same bits.
    std::vector<float> alone(static_cast<size_t>(c.d));
    const Tensor alone_view = Tensor::F32(alone.data(), {1, c.d});
    for (int64_t r : {int64_t{0}, c.rows - 1}) {
      std::memcpy(alone.data(), x.data() + r * stride, alone.size() * sizeof(float));
      run(alone_view, alone_view);
      CHECK(std::memcmp(alone.data(), y.data() + r * c.d, alone.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("norms equal the formula in double", "[norm]") {
  ForEachIsa([] {
    for (bool centred : {false, true}) {
      for (int64_t d : {1, 2, 7, 15, 16, 17, 63, 64, 65, 512, 768, 1000}) {
        // The deviations of a short row may vanish, which makes any result ill-conditioned.
        CheckNorm({centred, 3, d, d > 16 ? 20.0f : 0.0f});
      }
      CheckNorm({centred, 200, 512, 0.0f});
    }
  });
}

TEST_CASE("a row of zeros stays zero", "[norm]") {
  ThreadPool pool(1);
  Stream stream(&pool);
  std::vector<float> x(48, 0.0f), ones(48, 1.0f);
  const Tensor view = Tensor::F32(x.data(), {1, 48});
  RmsNorm({.x = view, .gamma = Tensor::F32(ones.data(), {48}), .y = view, .eps = 1e-6f}, stream);
  for (float v : x) CHECK(v == 0.0f);
}

}  // namespace
}  // namespace quintet
