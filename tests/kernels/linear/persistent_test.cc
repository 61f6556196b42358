// GEMMs of many rows with 16-bit weights, gated or with scattered output. A sample of the values of
// y is compared with a reference; all values are checked to have been written.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

struct PersistentCase {
  int64_t rows, columns, k;  // columns of y
  bool gated = false;        // otherwise scattered
  Activation activation = Activation::kNone;
  WeightType type = WeightType::kBF16;
  bool x_f32 = false;
  int64_t gap = 0;    // unused values between rows of x and between rows of y
  int64_t chunk = 8;  // columns per chunk (scattered); `begin` is the first column
  int64_t begin = 0;
  bool bias = false;

  int64_t n() const { return gated ? 2 * columns : columns; }
  DType operand() const { return WeightDType(type); }
};

// A test case with its inputs, rounded to the operand type. The weights repeat one sequence of
// random values; its length is prime, so that rows of W differ.
class PersistentProblem {
 public:
  PersistentProblem(const PersistentCase& c, TestBackend& backend)
      : c_(c),
        backend_(backend),
        x_(RoundedTo(c.operand(),
                     Random(c.rows * (c.k + c.gap), 1, 2.0f / std::sqrt(static_cast<float>(c.k))))),
        w_(RoundedTo(c.operand(), Repeated(c.n() * c.k))),
        bias_(Random(c.n(), 4)) {}

  // Runs the GEMM and returns y: [rows, columns + gap] or, if scattered, [chunk][row in reverse
  // order][column within the chunk], where a chunk is a range of columns that is stored
  // contiguously.
  std::vector<float> Run() {
    const LinearWeight w = MakeWeight(w_, c_.n(), c_.k, c_.type, c_.gated, backend_.device());
    LinearArgs args;
    args.x = backend_.Put(x_, {c_.rows, c_.k + c_.gap}, c_.x_f32 ? DType::kF32 : c_.operand())
                 .Columns(0, c_.k);
    args.w = &w;
    args.activation = c_.activation;
    if (c_.bias) args.bias = backend_.Put(bias_, {c_.n()});
    args.scratch = backend_.Scratch(LinearScratchBytes(w, c_.rows, backend_.stream()));
    const Tensor y = backend_.Poisoned(c_.operand(), {c_.rows, c_.columns + c_.gap});
    std::vector<int64_t> rows, chunks;
    if (c_.gated) {
      args.y = y.Columns(0, c_.columns);
    } else {
      for (int64_t r = 0; r < c_.rows; ++r) rows.push_back((c_.rows - 1 - r) * c_.chunk);
      for (int64_t j = 0; j < c_.columns; j += c_.chunk) chunks.push_back(c_.begin + j * c_.rows);
      args.scatter = {y.data, c_.operand(), backend_.Plan(rows).data(),
                      backend_.Plan(chunks).data(), c_.chunk};
    }
    Linear(args, backend_.stream());
    return backend_.Floats(y);
  }

  void Check(const std::vector<float>& y) const {
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t j = 0; j < c_.columns; ++j) {
        if (!std::isfinite(y[Offset(r, j)])) FAIL("not written: " << r << ", " << j);
      }
    }
    std::mt19937 generator(5);
    double worst = 0;
    for (int i = 0; i < 3000; ++i) {
      // The first 100 elements to compare are in the bottom right corner of y (last 7 rows, last 15
      // columns). The others are at random places anywhere in y.
      const int64_t r = i < 100 ? c_.rows - 1 - i % 7 : generator() % c_.rows;
      const int64_t j = i < 100 ? c_.columns - 1 - i / 7 : generator() % c_.columns;
      const double expected = Expected(r, j), scale = std::max(1.0, std::fabs(expected));
      const double own = std::fabs(y[Offset(r, j)] - expected) / scale;
      if (!(own <= worst)) worst = own;
    }
    // The tolerance also covers paths through cuBLASLt, which round the gate and up projections to
    // 16 bits before they are multiplied.
    CHECK(worst < 5 * RoundingError(c_.operand()));
    if (c_.gated && c_.gap > 0) CHECK(std::isnan(y[Offset(c_.rows / 2, c_.columns)]));
  }

 private:
  static std::vector<float> Repeated(int64_t count) {
    const std::vector<float> pattern = Random(100003, 2, 0.5f);
    std::vector<float> values(At(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = pattern[i % pattern.size()];
    return values;
  }

  size_t Offset(int64_t r, int64_t j) const {
    if (c_.gated) return At(r * (c_.columns + c_.gap) + j);
    const int64_t chunk = c_.begin + j / c_.chunk * c_.chunk * c_.rows;
    return At(chunk + (c_.rows - 1 - r) * c_.chunk + j % c_.chunk);
  }

  double Sum(int64_t r, int64_t channel) const {
    double sum = c_.bias ? bias_[At(channel)] : 0;
    for (int64_t i = 0; i < c_.k; ++i) {
      sum += double{x_[At(r * (c_.k + c_.gap) + i)]} * w_[At(channel * c_.k + i)];
    }
    return sum;
  }

  double Expected(int64_t r, int64_t j) const {
    const double v = Activate(c_.activation, Sum(r, j));
    return c_.gated ? v * Sum(r, c_.columns + j) : v;
  }

  const PersistentCase c_;
  quintet::TestBackend& backend_;
  const std::vector<float> x_, w_, bias_;
};

// Checks test case `c` with both 16-bit weight types on a GPU. Does nothing on a CPU, which has no
// separate path for many rows.
void Check(PersistentCase c) {
  ForEachBackend([&](TestBackend& backend) {
    if (backend.device() == nullptr) return;
    for (WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      c.type = type;
      INFO("rows " << c.rows << " columns " << c.columns << " k " << c.k << " gated " << c.gated
                   << " activation " << static_cast<int>(c.activation) << " type "
                   << WeightTypeName(type) << " x f32 " << c.x_f32 << " gap " << c.gap << " chunk "
                   << c.chunk << " from " << c.begin << " bias " << c.bias);
      PersistentProblem problem(c, backend);
      const std::vector<float> y = problem.Run();
      problem.Check(y);
      if (c.gap > 0 && c.rows < 2000) {
        const std::vector<float> again = problem.Run();
        CHECK(std::memcmp(again.data(), y.data(), y.size() * sizeof(float)) == 0);
      }
    }
  });
}

TEST_CASE("gated 16-bit GEMMs of many rows equal the reference", "[linear][many]") {
  const int64_t some = 1100;
  for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
    Check({.rows = some, .columns = 328, .k = 72, .gated = true, .activation = activation});
  }
  for (int64_t rows : Pick<int64_t>({511, 512, 513, 1000, 1023, 1024, 1025, 2049, 4097}, {some})) {
    Check({.rows = rows,
           .columns = 200,
           .k = 136,
           .gated = true,
           .activation = Activation::kGeluTanh,
           .gap = 8});
  }
  // Shapes that the persistent kernel does not support; other kernels compute them.
  Check({.rows = some, .columns = 204, .k = 64, .gated = true});
  Check({.rows = some, .columns = 128, .k = 60, .gated = true});
  Check({.rows = some, .columns = 136, .k = 8, .gated = true, .bias = true});
}

TEST_CASE("gated 16-bit GEMMs of about a hundred rows equal the reference", "[linear][many]") {
  for (int64_t rows : Pick<int64_t>({64, 65, 100, 127, 128, 129}, {65, 128})) {
    Check({.rows = rows,
           .columns = 5120,
           .k = 840,
           .gated = true,
           .activation = Activation::kGeluTanh,
           .gap = 8,
           .bias = rows % 2 == 1});
  }
  // In the first two checks the last tile and the last block of k are partial. The third check has
  // too few columns for the kernel that the other two use.
  Check({.rows = 128, .columns = 4004, .k = 1000, .gated = true, .activation = Activation::kSilu});
  Check({.rows = 101, .columns = 5200, .k = 712, .gated = true, .activation = Activation::kTanh});
  Check({.rows = 128, .columns = 2816, .k = 1024, .gated = true});
}

TEST_CASE("16-bit GEMMs of many rows with scattered output equal the reference", "[linear][many]") {
  for (bool x_f32 : {false, true}) {
    Check({.rows = 2100, .columns = 576, .k = 200, .x_f32 = x_f32, .chunk = 64});
    for (int64_t rows : Pick<int64_t>({255, 256, 257, 600}, {300})) {
      Check({.rows = rows, .columns = 328, .k = 72, .x_f32 = x_f32, .gap = 8, .begin = 3});
    }
    Check({.rows = 600, .columns = 240, .k = 72, .x_f32 = x_f32, .chunk = 20});
  }
  Check({.rows = 8300, .columns = 256, .k = 64, .x_f32 = true, .chunk = 32});
}

TEST_CASE("large 16-bit GEMMs of many rows equal the reference", "[linear][many][sweep]") {
  Check({.rows = 4097,
         .columns = 5120,
         .k = 2048,
         .gated = true,
         .activation = Activation::kGeluTanh});
  Check({.rows = 2048, .columns = 18432, .k = 768, .chunk = 64});
}

}  // namespace
}  // namespace quintet
