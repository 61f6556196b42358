#include "kernels/ops/norm.h"

#include <cmath>
#include <cstring>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// Reference: computes LayerNorm (centred) or RMSNorm in double; for RMSNorm the mean counts as 0.
// Rows of x are `stride` elements apart.
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
  float offset;     // added to x: a one-pass variance would be wrong for a large mean
  int64_t gap = 3;  // unused elements between rows of x
};

void CheckNorm(const NormCase& c, TestBackend& backend, DType x_type, DType y_type) {
  RandomData random(static_cast<uint32_t>(c.d * 2 + c.centred));
  const int64_t stride = c.d + c.gap;
  std::vector<float> x = random.Values(c.rows * stride);
  for (float& v : x) v += c.offset;
  x = RoundedTo(x_type, std::move(x));
  const std::vector<float> gamma = random.Values(c.d), beta = random.Values(c.d);
  const std::vector<double> expected =
      Reference(x, c.rows, c.d, stride, c.centred, 1e-5f, gamma, beta);
  const Tensor g = backend.Put(gamma, {c.d}), b = backend.Put(beta, {c.d});
  const auto run = [&](Tensor in, Tensor out) {
    if (c.centred) {
      LayerNorm({.x = in, .gamma = g, .beta = b, .y = out, .eps = 1e-5f}, backend.stream());
    } else {
      RmsNorm({.x = in, .gamma = g, .y = out, .eps = 1e-5f}, backend.stream());
    }
  };
  Tensor in = backend.Put(x, {c.rows, c.d}, x_type);
  in.stride[0] = stride;
  const Tensor out = backend.Poisoned(y_type, {c.rows, c.d});
  run(in, out);
  const std::vector<float> y = backend.Floats(out);
  const double tolerance = 3e-6 * (1.0 + 2.0 * std::abs(double{c.offset}));
  int64_t wrong = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double most = tolerance + RoundingError(y_type) * std::abs(expected[i]);
    wrong += std::abs(double{y[i]} - expected[i]) < most ? 0 : 1;
  }
  INFO(DTypeName(x_type) << " to " << DTypeName(y_type) << " " << c.rows << "x" << c.d
                         << (c.centred ? " centred" : ""));
  CHECK(wrong == 0);
  // A row that is normalized alone, in place if the dtypes allow it, must have the same bits as in
  // the batch.
  for (int64_t r : {int64_t{0}, c.rows - 1}) {
    const std::vector<float> row(x.begin() + r * stride, x.begin() + r * stride + c.d);
    const Tensor alone = backend.Put(row, {1, c.d}, x_type);
    const Tensor to = x_type == y_type ? alone : backend.Poisoned(y_type, {1, c.d});
    run(alone, to);
    CHECK(std::memcmp(backend.Floats(to).data(), y.data() + r * c.d,
                      static_cast<size_t>(c.d) * sizeof(float)) == 0);
  }
}

TEST_CASE("norms equal the formula in double", "[norm]") {
  ForEachBackend([](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      for (bool centred : {false, true}) {
        for (int64_t d :
             Pick<int64_t>({1, 2, 7, 15, 16, 17, 63, 64, 65, 512, 768, 1000, 2048, 4097, 4100},
                           {15, 64, 768, 1000, 2048, 4097, 4100})) {
          // The last argument of the case is an offset, a constant added to all values of x. Rows
          // of at most 16 values get none: their variance can be close to 0, and with a large mean
          // the normalized result would then be ill-conditioned.
          CheckNorm({centred, 3, d, d > 16 ? 20.0f : 0.0f}, backend, dtype, dtype);
        }
        CheckNorm({centred, 200, 512, 0.0f}, backend, dtype, dtype);
      }
    }
  });
}

TEST_CASE("the norm of a row has the same bits in a small and in a large batch", "[norm]") {
  ForEachBackend([](TestBackend& backend) {
    for (DType y_type : backend.float_types()) {
      for (bool centred : {false, true}) {
        for (int64_t d : Pick<int64_t>({512, 600, 768, 1024, 2048}, {600, 2048})) {
          CheckNorm({centred, 1021, d, 0.0f, 4}, backend, DType::kF32, y_type);
        }
      }
    }
  });
}

TEST_CASE("a row of zeros stays zero", "[norm]") {
  ForEachBackend([](TestBackend& backend) {
    const Tensor view = backend.Put(std::vector<float>(48, 0.0f), {1, 48});
    const Tensor gamma = backend.Put(std::vector<float>(48, 1.0f), {48});
    RmsNorm({.x = view, .gamma = gamma, .y = view, .eps = 1e-6f}, backend.stream());
    for (float v : backend.Floats(view)) CHECK(v == 0.0f);
  });
}

}  // namespace
}  // namespace quintet
