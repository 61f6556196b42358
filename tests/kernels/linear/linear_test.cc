#include "kernels/linear/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/linear/weight.h"
#include "kernels/runtime/cpu_features.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr CpuIsa kIsas[] = {CpuIsa::kBest, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvx2,
                            CpuIsa::kBaseline};

struct LinearCase {
  int64_t rows = 1, n = 1, k = 1;
  WeightType type = WeightType::kF32;
  DType x_type = DType::kF32, y_type = DType::kF32;
  bool gated = false, bias = false, residual = false, alias = false, scatter = false;
  float alpha = 1.0f;
  Activation activation = Activation::kNone;
  int64_t x_gap = 0;   // unused floats between rows of x
  int64_t sample = 1;  // every sample-th column of y and the last are compared

  int64_t columns() const { return gated ? n / 2 : n; }
  bool Compares(int64_t column) const { return column % sample == 0 || column + 1 == columns(); }
};

struct LinearInputs {
  std::vector<float> x, w, bias, residual;
};

LinearInputs MakeInputs(const LinearCase& c) {
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  return {Random(c.rows * (c.k + c.x_gap) + 1, 1), Random(c.n * c.k, 2), Random(c.n, 3),
          Random(c.rows * columns + 1, 4)};
}

LinearWeight MakeWeight(const LinearCase& c, const LinearInputs& in, TestBackend& backend) {
  return MakeWeight(in.w, c.n, c.k, c.type, c.gated, backend.device());
}

// Scattered layout of y: its columns are split into chunks of equal width, and the chunks are
// stored one after the other as [chunk][row in reverse order][column within the chunk].
struct Scatter {
  explicit Scatter(const LinearCase& c) {
    const int64_t columns = c.gated ? c.n / 2 : c.n;
    chunk = columns % 3 == 0 ? columns / 3 : columns;
    for (int64_t r = 0; r < c.rows; ++r) row_offset.push_back((c.rows - 1 - r) * chunk);
    for (int64_t i = 0; i < columns / chunk; ++i) chunk_offset.push_back(i * c.rows * chunk);
  }
  std::vector<float> Gather(const std::vector<float>& y) const {
    std::vector<float> plain;
    for (int64_t row : row_offset) {
      for (int64_t first : chunk_offset) {
        const auto begin = y.begin() + row + first;
        plain.insert(plain.end(), begin, begin + chunk);
      }
    }
    return plain;
  }
  int64_t chunk;
  std::vector<int64_t> row_offset, chunk_offset;
};

// The bias of a test case may be f32 or have the dtype of y. Test cases with an even number of rows
// use f32, the others the dtype of y.
DType BiasType(const LinearCase& c) { return c.rows % 2 == 0 ? DType::kF32 : c.y_type; }

// Runs Linear for the test case `c` and returns y. Fails the test if Linear writes to the element
// after the end of y.
std::vector<float> Run(const LinearCase& c, const LinearInputs& in, const LinearWeight& w,
                       TestBackend& backend) {
  const int64_t gemms = backend.stream().gemms();
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  std::vector<float> before(static_cast<size_t>(c.rows * columns) + 1, -77.0f);
  if (c.residual && c.alias) std::copy_n(in.residual.begin(), c.rows * columns, before.begin());
  const Tensor memory = backend.Put(before, {c.rows * columns + 1}, c.y_type);
  LinearArgs args;
  args.x = backend.Put(in.x, {c.rows, c.k}, c.x_type);
  args.x.stride[0] = c.k + c.x_gap;
  args.w = &w;
  if (c.bias) args.bias = backend.Put(in.bias, {c.n}, BiasType(c));
  args.alpha = c.alpha;
  args.activation = c.activation;
  const Scatter scatter(c);
  if (c.scatter) {
    args.scatter = {memory.data, c.y_type, backend.Plan(scatter.row_offset).data(),
                    backend.Plan(scatter.chunk_offset).data(), scatter.chunk};
  } else {
    args.y = Tensor::Dense(memory.data, c.y_type, {c.rows, columns});
    if (c.residual) {
      args.residual = c.alias ? args.y : backend.Put(in.residual, {c.rows, columns}, c.y_type);
    }
  }
  args.scratch = backend.Scratch(LinearScratchBytes(w, c.rows, backend.stream()));
  Linear(args, backend.stream());
  CHECK(backend.stream().gemms() == gemms + 1);
  std::vector<float> y = backend.Floats(memory);
  CHECK(y.back() == -77.0f);
  y.pop_back();
  return c.scatter ? scatter.Gather(y) : y;
}

// The dtype to which the GEMM rounds x.
DType OperandType(WeightType type, const Device* device) {
  if (!IsQuantized(type)) return WeightDType(type);
  return ActivationType(type, device);
}

// Reference: computes y by loops in double from the stored (rounded) weights, and for i8 weights on
// a CPU also from the quantized x. The output of Linear therefore differs only by the rounding of
// its own arithmetic. Elements of y in columns that the test does not compare are 0.
std::vector<double> Reference(const LinearCase& c, const LinearInputs& in,
                              const std::vector<float>& w, const Device* device = nullptr) {
  const std::vector<float> x_rounded =
      RoundedTo(OperandType(c.type, device), RoundedTo(c.x_type, in.x));
  const std::vector<float> bias = RoundedTo(BiasType(c), in.bias);
  const std::vector<float> residual = RoundedTo(c.y_type, in.residual);
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  std::vector<double> y(static_cast<size_t>(c.rows * columns)), sums(static_cast<size_t>(c.n));
  for (int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> x(x_rounded.begin() + r * (c.k + c.x_gap),
                          x_rounded.begin() + r * (c.k + c.x_gap) + c.k);
    if (c.type == WeightType::kI8 && device == nullptr) {
      float most = 0;
      for (double v : x) most = std::max(most, static_cast<float>(std::fabs(v)));
      const float inverse = 127.0f / most;
      for (double& v : x) v = std::nearbyint(static_cast<float>(v) * inverse) * (most / 127.0f);
    }
    for (int64_t j = 0; j < c.n; ++j) {
      if (!c.Compares(j % columns)) continue;
      double sum = 0;
      for (int64_t i = 0; i < c.k; ++i)
        sum += x[static_cast<size_t>(i)] * w[static_cast<size_t>(j * c.k + i)];
      sums[static_cast<size_t>(j)] = c.alpha * sum + (c.bias ? bias[static_cast<size_t>(j)] : 0.0f);
    }
    for (int64_t j = 0; j < columns; ++j) {
      if (!c.Compares(j)) continue;
      double v = Activate(c.activation, sums[static_cast<size_t>(j)]);
      if (c.gated) v *= sums[static_cast<size_t>(j + columns)];
      if (c.residual && !c.scatter) v += residual[static_cast<size_t>(r * columns + j)];
      y[static_cast<size_t>(r * columns + j)] = v;
    }
  }
  return y;
}

// Whether a GPU certainly multiplies by quantized weights without rounding them to bf16.
bool MultipliesBytes(const LinearCase& c, TestBackend& backend) {
  if (c.scatter || c.x_gap % 8 != 0) return false;
  if (c.rows <= 32 && c.k % 64 == 0) return true;
  return backend.device()->hopper() && c.rows <= 128 && c.k % 64 == 0 && c.columns() % 4 == 0 &&
         c.x_type == DType::kBF16;
}

void Check(const LinearCase& c, TestBackend& backend) {
  INFO("rows " << c.rows << " n " << c.n << " k " << c.k << " weights " << static_cast<int>(c.type)
               << " x " << DTypeName(c.x_type) << " y " << DTypeName(c.y_type) << " gated "
               << c.gated << " bias " << c.bias << " residual " << c.residual << c.alias
               << " scatter " << c.scatter << " alpha " << c.alpha << " activation "
               << static_cast<int>(c.activation));
  const LinearInputs in = MakeInputs(c);
  const std::vector<float> y = Run(c, in, MakeWeight(c, in, backend), backend);
  const std::vector<double> expected =
      Reference(c, in, StoredWeights(in.w, c.n, c.k, c.type), backend.device());
  REQUIRE(y.size() == expected.size());
  double most = 1e-3, error = 0;
  for (double v : expected) most = std::max(most, std::fabs(v));
  for (size_t i = 0; i < y.size(); ++i) {
    if (!c.Compares(static_cast<int64_t>(i) % c.columns())) continue;
    const double own = std::fabs(y[i] - expected[i]);
    error = own <= error ? error : own;  // NaN counts as an error
  }
  // Besides the rounding of the f32 sums, a 16-bit y is rounded once when it is stored. Values that
  // pass through 16-bit scratch memory are also rounded once: gate and up, results before they are
  // scattered, and inputs of activations that cuBLASLt does not support.
  double rounding = c.y_type == DType::kF32 ? 0 : RoundingError(c.y_type);
  const DType operand = OperandType(c.type, backend.device());
  if (operand != DType::kF32 && (c.gated || c.scatter || c.activation != Activation::kNone)) {
    rounding = std::max(rounding, RoundingError(operand));
  }
  // On a GPU only the kernels for few and for tens of rows (on Hopper) multiply quantized weights
  // directly. The other paths round each dequantized weight. The tolerance for this rounding grows
  // with the magnitude of the k terms of the sum, which can be much larger than the magnitude of
  // the sum.
  if (backend.device() != nullptr && IsQuantized(c.type) && !MultipliesBytes(c, backend)) {
    rounding = std::max(rounding, RoundingError(operand));
    // In a gated GEMM the error of the gate is multiplied by the magnitude of the up projection,
    // and vice versa.
    const double k = static_cast<double>(c.k);
    most = std::max(most, c.gated ? k : std::sqrt(k));
  }
  CHECK(error / most <
        2e-6 * std::max(1.0, std::sqrt(static_cast<double>(c.k) / 1000)) + 4 * rounding);
}

// Checks test case `c` on every backend with every weight type. The shape of `c` decides whether x
// and y are f32 or have the 16-bit dtype that activations may have with that weight type. Testing
// every combination would be slow: autotuning a new GEMM shape takes a GPU tens of milliseconds.
void CheckEverywhere(LinearCase c) {
  ForEachBackend([&](TestBackend& backend) {
    const int64_t turn = c.rows + c.n + c.k;
    for (WeightType type : Types(backend.device())) {
      c.type = type;
      const DType other = ActivationType(type, backend.device());
      c.x_type = turn % 4 < 2 ? other : DType::kF32;
      c.y_type = turn % 2 == 0 ? other : DType::kF32;
      Check(c, backend);
    }
  });
}

// Runs `body` for every instruction set level, with a pool of two threads.
template <typename Body>
void AtEveryIsa(Body body) {
  ThreadPool pool(2);
  for (CpuIsa isa : kIsas) {
    SetCpuIsaForTest(isa);
    INFO("isa " << CpuIsaName() << " level " << static_cast<int>(isa));
    body(pool);
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

// Test cases tagged [sweep] take hours under a memory sanitizer. The other test cases reach the
// same kernels.
TEST_CASE("GEMMs of a few irregular shapes equal the reference", "[linear]") {
  CheckEverywhere({.rows = 1, .n = 65, .k = 3});
  CheckEverywhere({.rows = 7, .n = 130, .k = 129, .x_gap = 1});
  CheckEverywhere({.rows = 49, .n = 63, .k = 64});
  CheckEverywhere({.rows = 65, .n = 66, .k = 48, .gated = true, .residual = true});
  CheckEverywhere({.rows = 40, .n = 63, .k = 32, .bias = true, .scatter = true});
}

TEST_CASE("GEMMs of irregular shapes equal the reference", "[linear][sweep]") {
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 49, 97}) {
    for (int64_t n : {1, 63, 64, 65, 130}) {
      for (int64_t k : {1, 3, 64, 129}) {
        CheckEverywhere({.rows = rows, .n = n, .k = k, .x_gap = rows % 3});
      }
    }
  }
  CheckEverywhere({.rows = 50, .n = 70, .k = 2501});
  CheckEverywhere({.rows = 8, .n = 33, .k = 4096});  // row stride: whole pages
  CheckEverywhere({.rows = 0, .n = 5, .k = 7});
  CheckEverywhere({.rows = 1, .n = 768, .k = 3072});
  CheckEverywhere({.rows = 130, .n = 512, .k = 512});
  CheckEverywhere({.rows = 1030, .n = 63, .k = 32, .scatter = true});
  CheckEverywhere({.rows = 64, .n = 520, .k = 200, .residual = true});
  CheckEverywhere({.rows = 2, .n = 9000, .k = 96, .residual = true});
  CheckEverywhere({.rows = 8, .n = 10002, .k = 64, .bias = true});
  CheckEverywhere({.rows = 7, .n = 9004, .k = 64, .gated = true});
  CheckEverywhere({.rows = 49, .n = 71, .k = 128, .bias = true});
  CheckEverywhere({.rows = 128, .n = 132, .k = 768, .bias = true});
  CheckEverywhere({.rows = 33, .n = 96, .k = 3072, .residual = true, .alias = true});
  CheckEverywhere({.rows = 17, .n = 64, .k = 2048, .residual = true});
  CheckEverywhere({.rows = 40, .n = 100, .k = 256, .gated = true});
  for (int64_t k : {640, 896, 2080}) CheckEverywhere({.rows = 5, .n = 40, .k = k});
}

TEST_CASE("GEMMs of few rows in a few shapes equal the reference", "[linear]") {
  for (int64_t rows : {1, 9, 32}) {
    CheckEverywhere({.rows = rows, .n = 42, .k = 320});
    CheckEverywhere({.rows = rows, .n = 42, .k = 64, .gated = true, .residual = true});
    CheckEverywhere({.rows = rows,
                     .n = 40,
                     .k = 128,
                     .bias = true,
                     .alpha = 0.3f,
                     .activation = Activation::kGeluTanh});
  }
}

TEST_CASE("GEMMs of few rows equal the reference", "[linear][sweep]") {
  for (int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33}) {
    for (int64_t n : {16, 42, 130}) {
      for (int64_t k : {64, 320, 1088}) {
        CheckEverywhere({.rows = rows, .n = n, .k = k});
        CheckEverywhere({.rows = rows, .n = n, .k = k, .gated = true, .residual = true});
      }
    }
  }
  CheckEverywhere({.rows = 4, .n = 9000, .k = 512});  // more blocks than are resident on a GPU
}

// Checks test case `c` on a GPU with weights of 16 and 8 bits, x of 16 bits, and y once of the type
// of x and once f32. On the CPU everything is f32. There, large cases (those that compare only a
// sample of y's columns, sample > 1) are skipped, since they target the tiles of GPU kernels.
void CheckHalfOperands(LinearCase c) {
  ForEachBackend([&](TestBackend& backend) {
    if (backend.device() == nullptr) {
      if (c.sample == 1) Check(c, backend);
      return;
    }
    for (WeightType type :
         {WeightType::kBF16, WeightType::kF16, WeightType::kI8, WeightType::kF8}) {
      const DType operand = OperandType(type, backend.device());
      for (DType y_type : {operand, DType::kF32}) {
        c.type = type, c.x_type = operand, c.y_type = y_type;
        Check(c, backend);
      }
    }
  });
}

// Row lengths of y (n, or n / 2 if gated) are multiples of 4 elements here, because the Hopper
// kernel requires it.
TEST_CASE("GEMMs of tens of rows of 16 bits equal the reference", "[linear]") {
  for (int64_t rows : {9, 33, 128, 256}) {
    CheckHalfOperands({.rows = rows, .n = 72, .k = 200, .bias = true});
    CheckHalfOperands({.rows = rows, .n = 72, .k = 64, .gated = true, .residual = true});
  }
}

TEST_CASE("GEMMs of tens to hundreds of rows of 16 bits equal the reference", "[linear][sweep]") {
  for (int64_t rows : {9, 16, 17, 31, 33, 64, 100, 127, 128, 129, 255, 256}) {
    for (int64_t k : {32, 72, 448, 520}) {
      CheckHalfOperands({.rows = rows, .n = 65 + 2 * (rows % 2), .k = k, .bias = true});
      CheckHalfOperands({.rows = rows, .n = 136, .k = k, .residual = true, .alias = true});
      CheckHalfOperands({.rows = rows,
                         .n = 88,
                         .k = k,
                         .gated = true,
                         .bias = true,
                         .residual = true,
                         .alpha = 0.3f,
                         .activation = Activation::kGeluTanh,
                         .x_gap = 8});
    }
    CheckHalfOperands({.rows = rows, .n = 132, .k = 5120, .residual = true, .sample = 7});
    CheckHalfOperands({.rows = rows, .n = 768, .k = 768, .sample = 31});
    CheckHalfOperands({.rows = rows, .n = 2048, .k = 768, .gated = true, .sample = 61});
    CheckHalfOperands({.rows = rows, .n = 6148, .k = 256, .residual = true, .sample = 61});
  }
  for (Activation activation :
       {Activation::kRelu, Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
    CheckHalfOperands(
        {.rows = 40, .n = 68, .k = 128, .bias = true, .alpha = 0.05f, .activation = activation});
  }
}

// On Hopper, these GEMMs run through the split-K kernel or the 2-CTA kernel.
TEST_CASE("GEMMs of about a hundred rows of 16 bits with large weights equal the reference",
          "[linear]") {
  for (int64_t rows : Pick<int64_t>({64, 65, 100, 127, 128, 129}, {65, 128})) {
    CheckHalfOperands(
        {.rows = rows, .n = 2048, .k = 2048, .residual = true, .alias = true, .sample = 97});
    CheckHalfOperands({.rows = rows,
                       .n = 10240,
                       .k = 840,
                       .gated = true,
                       .activation = Activation::kGeluTanh,
                       .sample = 97});
  }
  CheckHalfOperands(
      {.rows = 101, .n = 2052, .k = 2120, .bias = true, .alpha = 0.3f, .x_gap = 8, .sample = 97});
  CheckHalfOperands({.rows = 128, .n = 2048, .k = 5120, .residual = true, .sample = 97});
  CheckHalfOperands({.rows = 77,
                     .n = 10400,
                     .k = 712,
                     .gated = true,
                     .bias = true,
                     .alpha = 0.3f,
                     .activation = Activation::kSilu,
                     .sample = 97});
}

TEST_CASE("GEMMs with quantized weights of many channels equal the reference in every slice",
          "[linear][sweep]") {
  // On a GPU the weights are dequantized in slices of 32 MiB of bf16, here 8,192 channels of 2,048
  // values. Therefore 8,256 channels take two slices.
  CheckEverywhere({.rows = 40, .n = 8256, .k = 2048, .bias = true, .residual = true, .sample = 61});
  CheckEverywhere({.rows = 3, .n = 8256, .k = 2048, .scatter = true, .sample = 61});
}

TEST_CASE("GEMM epilogues equal the reference", "[linear][sweep]") {
  for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
    for (int bits = 0; bits < 32; ++bits) {
      LinearCase c;
      c.rows = 1 + bits % 9;
      c.n = 2 * (bits % 2 ? 99 : 96);
      c.k = bits % 3 == 0 ? 48 : 20 + bits;
      c.activation = activation;
      c.gated = bits & 1;
      c.bias = bits & 2;
      c.residual = bits & 4;
      c.alias = bits & 8;
      c.alpha = bits & 2 ? 0.3f : 1.0f;
      c.scatter = bits & 16;
      CheckEverywhere(c);
    }
  }
}

// Tests only the GEMMs that guarantee a row the same bits in every batch: all GEMMs on a CPU, and
// those with f32 weights on a GPU.
TEST_CASE("a row has the same bits alone, in any batch and with any number of threads",
          "[linear][sweep]") {
  std::map<std::tuple<std::string, WeightType, int64_t>, std::vector<float>> earlier;
  ForEachBackend([&](TestBackend& backend) {
    for (WeightType type : Types(backend.device())) {
      if (backend.device() != nullptr && type != WeightType::kF32) continue;
      for (int64_t k : {700, 2048}) {  // 2048: row stride is whole pages
        LinearCase c;
        c.n = 200, c.k = k, c.type = type, c.activation = Activation::kGeluErf, c.bias = true;
        c.rows = 103;
        const LinearInputs in = MakeInputs(c);
        const LinearWeight w = MakeWeight(c, in, backend);
        const std::vector<float> all = Run(c, in, w, backend);
        const auto [same_isa, first_time] = earlier.insert({{CpuIsaName(), type, k}, all});
        if (!first_time) CHECK(same_isa->second == all);
        for (int64_t rows : {1, 2, 3, 5, 6, 7, 8, 11, 19, 50}) {
          LinearCase part = c;
          part.rows = rows;
          for (int64_t first : {0, 17, 53}) {
            INFO(CpuIsaName() << " weights " << static_cast<int>(type) << " k " << k << " rows "
                              << first << " + " << rows);
            LinearInputs slice = in;
            slice.x.assign(in.x.begin() + first * c.k, in.x.end());
            CHECK(std::memcmp(Run(part, slice, w, backend).data(), all.data() + first * c.n,
                              static_cast<size_t>(rows * c.n) * 4) == 0);
          }
        }
      }
    }
  });
}

TEST_CASE("16-bit GEMMs give the same bits in every run", "[linear][sweep]") {
  ForEachBackend([](TestBackend& backend) {
    for (WeightType type : Types(backend.device())) {
      for (int64_t rows : {1, 32, 100, 300}) {
        LinearCase c;
        c.rows = rows, c.n = 768, c.k = 3072, c.type = type, c.residual = true;
        const LinearInputs in = MakeInputs(c);
        const LinearWeight w = MakeWeight(c, in, backend);
        CHECK(Run(c, in, w, backend) == Run(c, in, w, backend));
      }
    }
  });
}

TEST_CASE("int8 and f32 sums have the same bits on every instruction set", "[linear][cpu]") {
  for (WeightType type : {WeightType::kF32, WeightType::kI8}) {
    std::vector<float> first;
    ForEachBackend([&](TestBackend& backend) {
      // Instruction sets without fused multiply-add round f32 sums differently.
      if (type == WeightType::kF32 && std::string(CpuIsaName()).rfind("AVX", 0) != 0) return;
      const LinearCase c{.rows = 41, .n = 65, .k = 333, .type = type};
      const LinearInputs in = MakeInputs(c);
      const std::vector<float> y = Run(c, in, MakeWeight(c, in, backend), backend);
      if (first.empty()) first = y;
      CHECK(first == y);
    });
  }
}

TEST_CASE("int8 sums do not saturate", "[linear][cpu]") {
  AtEveryIsa([](ThreadPool& pool) {
    const int64_t k = 66000;
    std::vector<float> ones(static_cast<size_t>(k), 1.0f);
    LinearWeight w = *LinearWeight::Allocate(1, k, WeightType::kI8, false);
    w.Pack(0, Tensor::F32(ones.data(), {1, k}));
    for (float sign : {1.0f, -1.0f}) {
      for (float& v : ones) v = sign;
      Stream stream(&pool);
      float y = 0;
      LinearArgs args;
      args.x = Tensor::F32(ones.data(), {1, k});
      args.w = &w;
      args.y = Tensor::F32(&y, {1, 1});
      std::vector<char> scratch(static_cast<size_t>(LinearScratchBytes(w, 1, stream)));
      args.scratch =
          Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
      Linear(args, stream);
      CHECK(y == Approx(sign * static_cast<float>(k)).epsilon(1e-5));
    }
  });
}

TEST_CASE("activation functions are accurate over their whole range", "[linear]") {
  std::vector<float> x;
  for (double v = -12.0; v < 12.0; v += 0.0013) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, 1e-30f, -1e-30f, 30.0f, -30.0f, 200.0f, -200.0f}) x.push_back(v);
  LinearCase c;
  c.rows = static_cast<int64_t>(x.size());
  ForEachBackend([&](TestBackend& backend) {
    LinearInputs in = MakeInputs(c);
    in.x = x;
    in.w = {1.0f};
    const LinearWeight w = MakeWeight(c, in, backend);
    for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                  Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
      c.activation = activation;
      const std::vector<float> y = Run(c, in, w, backend);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = Activate(activation, x[i]);
        // The error is relative to the result or, if larger, to x / 4: for negative x, 1 + erf(x)
        // loses precision by cancellation, as it does in the reference models.
        const double unit = std::max(std::fabs(expected), std::fabs(x[i]) * 0.25) * 0x1p-24;
        worst = std::max(worst, std::fabs(y[i] - expected) / std::max(unit, 1e-38));
      }
      INFO("activation " << static_cast<int>(activation));
      CHECK(worst < 8.0);
    }
  });
}

TEST_CASE("NaN propagates to the output", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    for (WeightType type : Types(backend.device())) {
      for (Activation activation :
           Pick({Activation::kNone, Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf,
                 Activation::kSilu, Activation::kTanh},
                {Activation::kNone, Activation::kRelu, Activation::kGeluErf})) {
        LinearCase c;
        c.rows = 2, c.n = 3, c.k = 5, c.type = type, c.activation = activation;
        LinearInputs in = MakeInputs(c);
        in.x[2] = std::nanf("");
        const std::vector<float> y = Run(c, in, MakeWeight(c, in, backend), backend);
        // The ReLU epilogue of cuBLASLt, which 16-bit GEMMs may use, maps NaN to 0.
        const bool library = backend.device() != nullptr && type != WeightType::kF32;
        if (!library || activation != Activation::kRelu) CHECK(std::isnan(y[0]));
        CHECK(!std::isnan(y[3]));
      }
    }
  });
}

TEST_CASE("quantized values and scales can be packed directly", "[linear][cpu]") {
  const int64_t n = 70, k = 9;
  std::vector<int8_t> values(static_cast<size_t>(n * k));
  std::vector<float> scales = Random(n, 6), expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int8_t>(static_cast<int>(i * 37 % 255) - 127);
    expected[i] = static_cast<float>(values[i]) * scales[i / static_cast<size_t>(k)];
  }
  LinearWeight w = *LinearWeight::Allocate(n, k, WeightType::kI8, false);
  w.PackQuantized(0, Tensor::Dense(values.data(), DType::kI8, {n, k}),
                  Tensor::F32(scales.data(), {n}));
  std::vector<float> back(values.size());
  w.Unpack(0, Tensor::F32(back.data(), {n, k}));
  CHECK(back == expected);
  // Some kernels for i8 weights also use the sum of each output channel's quantized weights, which
  // packing computes. If packing computed a wrong sum, the GEMM below would return wrong results.
  LinearCase c;
  c.rows = 2, c.n = n, c.k = k, c.type = WeightType::kI8;
  const LinearInputs in = MakeInputs(c);
  const std::vector<double> reference = Reference(c, in, expected);
  ForEachBackend([&](TestBackend& backend) {
    const std::vector<float> y = Run(c, in, w, backend);
    for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == Approx(reference[i]).margin(1e-3));
  });
}

}  // namespace
}  // namespace quintet
