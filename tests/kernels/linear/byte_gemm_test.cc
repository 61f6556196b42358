// GEMMs of 8-bit values: the types fp8-w8a8 and int8-w8a8, on a Hopper GPU. The reference quantises
// x as linear.h says and sums in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

enum class Output { kF32, kBf16, kGated, kScattered };
enum class Norm { kNone, kRms, kLayer };
constexpr double kNormEps = 1e-5;

struct ByteGemmCase {
  Output output = Output::kF32;
  int64_t rows = 40, columns = 136, k = 64;  // columns of y
  DType x_type = DType::kBF16;
  Activation activation = Activation::kNone;
  std::optional<DType> bias;
  bool residual = false;
  float alpha = 1.0f;
  int64_t gap = 0;  // unused values between rows of x, of y and of the residual
  Norm norm = Norm::kNone;
  WeightType type = WeightType::kF8W8A8;

  bool gated() const { return output == Output::kGated; }
  bool scattered() const { return output == Output::kScattered; }
  int64_t n() const { return gated() ? 2 * columns : columns; }
};

// The nearest e4m3 value, ties to even.
float ToE4m3(float v) {
  if (v == 0.0f) return 0.0f;
  const int exponent = std::clamp(std::ilogb(v), -6, 8);
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::clamp(std::nearbyint(v / step) * step, -448.0f, 448.0f);
}

// Replaces each row of x by its norm.
void Normalize(const ByteGemmCase& c, const std::vector<float>& gamma,
               const std::vector<float>& beta, std::vector<float>* x) {
  for (int64_t r = 0; r < c.rows; ++r) {
    float* const row = x->data() + r * (c.k + c.gap);
    double mean = 0.0, variance = 0.0;
    for (int64_t i = 0; i < c.k; ++i) mean += row[i] / static_cast<double>(c.k);
    if (c.norm == Norm::kRms) mean = 0.0;
    for (int64_t i = 0; i < c.k; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const double scale = 1.0 / std::sqrt(variance / static_cast<double>(c.k) + kNormEps);
    for (int64_t i = 0; i < c.k; ++i) {
      const double shift = c.norm == Norm::kRms ? 0.0 : beta[At(i)];
      row[i] = static_cast<float>((row[i] - mean) * scale * gamma[At(i)] + shift);
    }
  }
}

// Replaces each row of x by its quantised values times the scale of the row.
std::vector<float> QuantizedRows(const ByteGemmCase& c, std::vector<float> x) {
  const bool fp8 = c.type == WeightType::kF8W8A8;
  const float largest = fp8 ? 448.0f : 127.0f;
  for (int64_t r = 0; r < c.rows; ++r) {
    float* const row = x.data() + r * (c.k + c.gap);
    float most = 0.0f;
    for (int64_t i = 0; i < c.k; ++i) most = std::max(most, std::fabs(row[i]));
    const float scale = most / largest, inverse = most > 0.0f ? largest / most : 0.0f;
    for (int64_t i = 0; i < c.k; ++i) {
      const float scaled = row[i] * inverse;
      row[i] = scale * (fp8 ? ToE4m3(scaled) : std::nearbyint(scaled));
    }
  }
  return x;
}

class ByteGemmProblem {
 public:
  ByteGemmProblem(const ByteGemmCase& c, TestBackend& backend)
      : c_(c),
        backend_(backend),
        x_(RoundedTo(c.x_type, Random(c.rows * (c.k + c.gap), 1))),
        w_(Random(c.n() * c.k, 2, 1.0f / std::sqrt(static_cast<float>(c.k)))),
        bias_(RoundedTo(c.bias.value_or(DType::kF32), Random(c.n(), 3))),
        residual_(Random(c.rows * (c.columns + c.gap), 4)),
        gamma_(Random(c.k, 5)),
        beta_(Random(c.k, 6)),
        weight_(MakeWeight(w_, c.n(), c.k, c.type, c.gated(), backend.device())) {
    // Rows of zeros, of tiny and of large values.
    for (int64_t i = 0; i < c.k; ++i) {
      x_[At(i)] = 0.0f;
      x_[At(c.k + c.gap + i)] *= 0x1p-60f;
      x_[At(2 * (c.k + c.gap) + i)] *= 0x1p40f;
    }
    Dequantise();
  }

  std::vector<float>& x() { return x_; }
  Tensor Run() { return Run(weight_); }
  Tensor Run(const LinearWeight& weight) {
    LinearArgs args;
    args.x = backend_.Put(x_, {c_.rows, c_.k + c_.gap}, c_.x_type).Columns(0, c_.k);
    args.w = &weight;
    args.activation = c_.activation;
    args.alpha = c_.alpha;
    if (c_.bias) args.bias = backend_.Put(bias_, {c_.n()}, *c_.bias);
    if (c_.norm != Norm::kNone) args.norm_gamma = backend_.Put(gamma_, {c_.k});
    if (c_.norm == Norm::kLayer) args.norm_beta = backend_.Put(beta_, {c_.k});
    args.norm_eps = static_cast<float>(kNormEps);
    args.scratch = backend_.Scratch(LinearScratchBytes(weight, c_.rows, backend_.stream()));
    const DType type = c_.output == Output::kF32 ? DType::kF32 : DType::kBF16;
    Tensor y = backend_.Poisoned(type, {c_.rows, c_.columns + c_.gap});
    if (c_.residual) {
      y = backend_.Put(residual_, {c_.rows, c_.columns + c_.gap});
      args.residual = y.Columns(0, c_.columns);
    }
    if (c_.scattered()) {
      // Chunks of eight columns; each chunk stores the rows in reverse order.
      std::vector<int64_t> rows, chunks;
      for (int64_t r = 0; r < c_.rows; ++r) rows.push_back((c_.rows - 1 - r) * 8);
      for (int64_t j = 0; j < c_.columns; j += 8) chunks.push_back(j * c_.rows);
      args.scatter = {y.data, type, backend_.Plan(rows).data(), backend_.Plan(chunks).data(), 8};
    } else {
      args.y = y.Columns(0, c_.columns);
    }
    REQUIRE((c_.x_type != DType::kF32 || SupportsFusedNorm(args, backend_.stream())));
    Linear(args, backend_.stream());
    return y;
  }

  void Check(const std::vector<float>& y) const {
    std::vector<float> x = x_;
    if (c_.norm != Norm::kNone) Normalize(c_, gamma_, beta_, &x);
    x = QuantizedRows(c_, std::move(x));
    const int64_t samples = std::min<int64_t>(c_.rows * c_.columns, 4000);
    double worst = 0.0;
    for (int64_t i = 0; i < samples; ++i) {
      // The last rows and columns, then elements all over y.
      const int64_t at =
          c_.rows * c_.columns - 1 - (i < 600 ? i : i * 7919) % (c_.rows * c_.columns);
      const int64_t r = at / c_.columns, j = at % c_.columns;
      const Value expected = Expected(x, r, j);
      const double off = std::fabs(y[Offset(r, j)] - expected.value) / expected.allowed;
      if (!(off <= worst)) worst = off;
    }
    CHECK(worst <= 1.0);
  }

  size_t Offset(int64_t r, int64_t j) const {
    if (!c_.scattered()) return At(r * (c_.columns + c_.gap) + j);
    return At(j / 8 * 8 * c_.rows + (c_.rows - 1 - r) * 8 + j % 8);
  }

 private:
  struct Value {
    double value, allowed;  // and its allowed error
  };

  void Dequantise() {
    const int64_t n = c_.n();
    std::vector<char> q(At(n * c_.k));
    std::vector<float> scales(At(n));
    QuantizeRows(Tensor::F32(w_.data(), {n, c_.k}),
                 Tensor::Dense(q.data(), WeightDType(c_.type), {n, c_.k}),
                 Tensor::Dense(scales.data(), DType::kF32, {n}));
    ConvertToF32(q.data(), WeightDType(c_.type), n * c_.k, w_.data());
    for (int64_t i = 0; i < n * c_.k; ++i) w_[At(i)] *= scales[At(i / c_.k)];
  }

  // Returns one element of x W^T and its tolerance. The tolerance is relative to the sum of the
  // magnitudes of the terms, because tensor cores add e4m3 products with less precision than f32.
  // With a norm, its f32 error may move a value of x to the next quantised value: by at most a 14th
  // (e4m3) or a 127th (i8) of the largest value of the row.
  Value Product(const std::vector<float>& x, int64_t r, int64_t channel) const {
    double sum = 0.0, terms = 0.0, most_x = 0.0, most_w = 0.0;
    for (int64_t i = 0; i < c_.k; ++i) {
      const double term = double{x[At(r * (c_.k + c_.gap) + i)]} * w_[At(channel * c_.k + i)];
      sum += term;
      terms += std::fabs(term);
      most_x = std::max(most_x, std::fabs(double{x[At(r * (c_.k + c_.gap) + i)]}));
      most_w = std::max(most_w, std::fabs(double{w_[At(channel * c_.k + i)]}));
    }
    const double other_way = c_.norm == Norm::kNone
                                 ? 0.0
                                 : most_x * most_w / (c_.type == WeightType::kF8W8A8 ? 14 : 127);
    const double unit = c_.type == WeightType::kF8W8A8 ? 0x1p-11 : 0x1p-20;
    const double bias = c_.bias ? bias_[At(channel)] : 0.0;
    return {c_.alpha * sum + bias, std::fabs(c_.alpha) * (terms * unit + other_way) + 1e-30};
  }

  // GELU and SiLU have slopes of up to 1.13.
  Value Expected(const std::vector<float>& x, int64_t r, int64_t j) const {
    const Value product = Product(x, r, j);
    Value y = {Activate(c_.activation, product.value), 1.2 * product.allowed};
    if (c_.gated()) {
      const Value up = Product(x, r, c_.columns + j);
      y = {y.value * up.value, y.allowed * std::fabs(up.value) + up.allowed * std::fabs(y.value)};
    }
    if (c_.residual) y.value += residual_[At(r * (c_.columns + c_.gap) + j)];
    const double rounding = RoundingError(c_.output == Output::kF32 ? DType::kF32 : DType::kBF16);
    y.allowed += std::fabs(y.value) * (rounding + 1e-5) + 1e-6;
    return y;
  }

  const ByteGemmCase c_;
  TestBackend& backend_;
  std::vector<float> x_, w_;
  const std::vector<float> bias_, residual_, gamma_, beta_;
  const LinearWeight weight_;
};

// Calls body(case, backend) for both types on a Hopper GPU, and does nothing elsewhere.
template <typename Body>
void ForEachType(ByteGemmCase c, Body body) {
  ForEachBackend([&](TestBackend& backend) {
    for (const WeightType type : {WeightType::kF8W8A8, WeightType::kI8W8A8}) {
      if (!WeightTypeSupported(type, backend.device())) continue;
      c.type = type;
      INFO(WeightTypeName(type) << " output " << static_cast<int>(c.output) << " rows " << c.rows
                                << " columns " << c.columns << " k " << c.k << " x "
                                << DTypeName(c.x_type) << " activation "
                                << static_cast<int>(c.activation) << " gap " << c.gap << " norm "
                                << static_cast<int>(c.norm));
      body(c, backend);
    }
  });
}

void Check(const ByteGemmCase& c) {
  ForEachType(c, [](const ByteGemmCase& typed, TestBackend& backend) {
    ByteGemmProblem problem(typed, backend);
    const std::vector<float> y = backend.Floats(problem.Run());
    problem.Check(y);
    const std::vector<float> again = backend.Floats(problem.Run());
    CHECK(std::memcmp(again.data(), y.data(), y.size() * sizeof(float)) == 0);
  });
}

TEST_CASE("8-bit GEMMs equal the reference", "[linear][byte_gemm]") {
  for (const Output output : {Output::kF32, Output::kBf16, Output::kGated, Output::kScattered}) {
    for (const int64_t rows : Pick<int64_t>({33, 64, 127, 129, 1000}, {33, 300})) {
      Check({.output = output, .rows = rows});
      Check({.output = output, .rows = rows, .columns = 328, .k = 272, .x_type = DType::kF32});
    }
    // k of less than one pipeline stage (128 values), k of many stages, and long rows of f32.
    Check({.output = output, .k = 16});
    Check({.output = output, .columns = 264, .k = 2064});
    Check({.output = output, .k = 4112, .x_type = DType::kF32});
    // 128 rows, the maximum for the kernel for few rows; then GEMMs of several tiles for each SM.
    Check({.output = output, .rows = 128, .columns = 520, .k = 1040});
    Check({.output = output, .rows = 100, .columns = 20008, .k = 272});
    Check({.output = output, .rows = 900, .columns = 6400, .k = 336});
    Check({.output = output, .rows = 2500, .columns = 3080, .k = 1040});
    if (output != Output::kScattered) {
      Check({.output = output, .rows = 200, .columns = 512, .k = 768, .gap = 8});
    }
  }
}

TEST_CASE("8-bit GEMMs apply bias, activation, alpha and residual", "[linear][byte_gemm]") {
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                      Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
    Check({.output = Output::kGated, .columns = 200, .k = 96, .activation = activation});
    for (const std::optional<DType> bias :
         {std::optional<DType>(), std::optional(DType::kF32), std::optional(DType::kBF16)}) {
      Check({.output = Output::kBf16, .columns = 200, .activation = activation, .bias = bias});
    }
  }
  Check({.output = Output::kF32, .rows = 700, .columns = 768, .k = 512, .residual = true});
  Check({.output = Output::kF32, .residual = true, .alpha = 0.25f, .gap = 8});
  Check({.output = Output::kF32, .bias = DType::kF32, .residual = true});
  Check({.output = Output::kBf16, .alpha = -3.0f});
}

TEST_CASE("8-bit GEMMs normalise x before they quantise it", "[linear][byte_gemm]") {
  for (const Norm norm : {Norm::kRms, Norm::kLayer}) {
    for (const int64_t k : {16, 272, 528, 1040, 2064, 4112}) {
      Check({.output = Output::kBf16, .k = k, .x_type = DType::kF32, .norm = norm});
    }
    Check({.output = Output::kGated, .rows = 300, .k = 784, .x_type = DType::kF32, .norm = norm});
    Check({.output = Output::kBf16,
           .rows = 70,
           .k = 96,
           .x_type = DType::kF32,
           .bias = DType::kBF16,
           .gap = 8,
           .norm = norm});
  }
}

TEST_CASE("8-bit GEMMs of more rows than are quantised at a time equal the reference",
          "[linear][byte_gemm]") {
  for (const Output output : {Output::kF32, Output::kGated, Output::kScattered}) {
    Check({.output = output, .rows = 8192 + 77, .columns = 64, .k = 32});
  }
  Check({.output = Output::kF32, .rows = 8192 + 77, .columns = 64, .k = 32, .residual = true});
}

TEST_CASE("an 8-bit GEMM makes only rows with NaN or infinity NaN", "[linear][byte_gemm]") {
  ForEachType({}, [](const ByteGemmCase& c, TestBackend& backend) {
    ByteGemmProblem problem(c, backend);
    const std::vector<float> y = backend.Floats(problem.Run());
    problem.x()[At(5 * c.k + 7)] = std::numeric_limits<float>::quiet_NaN();
    problem.x()[At(9 * c.k + 63)] = -std::numeric_limits<float>::infinity();
    const std::vector<float> with = backend.Floats(problem.Run());
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t j = 0; j < c.columns; ++j) {
        const float v = with[problem.Offset(r, j)];
        if (r == 5 || r == 9 ? !std::isnan(v) : v != y[problem.Offset(r, j)]) {
          FAIL("row " << r << ", column " << j << ": " << v);
        }
      }
    }
  });
}

TEST_CASE("GEMMs that cannot multiply 8-bit values use weights alone", "[linear][byte_gemm]") {
  // With 257 rows, since weights alone may have a kernel of their own up to 256.
  for (const ByteGemmCase& shape :
       {ByteGemmCase{.k = 40}, ByteGemmCase{.rows = 257, .columns = 132},
        ByteGemmCase{.rows = 20}}) {
    ForEachType(shape, [](const ByteGemmCase& c, TestBackend& backend) {
      ByteGemmProblem problem(c, backend);
      const WeightType alone = c.type == WeightType::kF8W8A8 ? WeightType::kF8 : WeightType::kI8;
      const LinearWeight weight =
          MakeWeight(Random(c.n() * c.k, 2, 1.0f / std::sqrt(static_cast<float>(c.k))), c.n(), c.k,
                     alone, c.gated(), backend.device());
      CHECK(backend.Floats(problem.Run()) == backend.Floats(problem.Run(weight)));
    });
  }
}

}  // namespace
}  // namespace quintet
