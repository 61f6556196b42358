#include "kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cpu_features.h"

namespace quintet {
namespace {

constexpr CpuIsa kIsas[] = {CpuIsa::kBest, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kBaseline};

std::vector<float> Random(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(generator);
  return values;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
  }
  return 0;
}

LinearWeight MakeWeight(const std::vector<float>& w, int64_t n, int64_t k, WeightType type,
                        bool gated) {
  LinearWeight weight = *LinearWeight::Allocate(n, k, type, gated);
  weight.Pack(0, Tensor::F32(w.data(), {n, k}));
  return weight;
}

struct Case {
  int64_t rows = 1, n = 1, k = 1;
  WeightType type = WeightType::kF32;
  bool gated = false, bias = false, residual = false, alias = false, scatter = false;
  float alpha = 1.0f;
  Activation activation = Activation::kNone;
  int64_t x_gap = 0;  // unused floats between rows of x
};

struct Inputs {
  std::vector<float> x, w, bias, residual;
};

Inputs MakeInputs(const Case& c) {
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  return {Random(c.rows * (c.k + c.x_gap) + 1, 1), Random(c.n * c.k, 2), Random(c.n, 3),
          Random(c.rows * columns + 1, 4)};
}

// Output with `rows` first rows of the inputs, through the op.
std::vector<float> Run(const Case& c, const Inputs& in, const LinearWeight& w, ThreadPool& pool) {
  Stream stream(&pool);
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  std::vector<float> y(static_cast<size_t>(c.rows * columns) + 1, -77.0f);
  LinearArgs args;
  args.x = Tensor::F32(in.x.data(), {c.rows, c.k});
  args.x.stride[0] = c.k + c.x_gap;
  args.w = &w;
  if (c.bias) args.bias = Tensor::F32(in.bias.data(), {c.n});
  args.alpha = c.alpha;
  args.activation = c.activation;
  std::vector<int64_t> row_offset, chunk_offset;
  if (c.scatter) {
    // Rows in reverse order and chunks transposed: [chunk][row reversed][within].
    const int64_t chunk = columns % 3 == 0 ? columns / 3 : columns;
    for (int64_t r = 0; r < c.rows; ++r) row_offset.push_back((c.rows - 1 - r) * chunk);
    for (int64_t i = 0; i < columns / chunk; ++i) chunk_offset.push_back(i * c.rows * chunk);
    args.scatter = {y.data(), DType::kF32, row_offset.data(), chunk_offset.data(), chunk};
  } else {
    args.y = Tensor::F32(y.data(), {c.rows, columns});
    if (c.residual) {
      if (c.alias) {
        std::copy_n(in.residual.begin(), c.rows * columns, y.begin());
        args.residual = args.y;
      } else {
        args.residual = Tensor::F32(in.residual.data(), {c.rows, columns});
      }
    }
  }
  std::vector<char> scratch(static_cast<size_t>(LinearScratchBytes(w, c.rows, stream)));
  if (!scratch.empty()) {
    args.scratch =
        Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
  }
  Linear(args, stream);
  CHECK(stream.products() == 1);
  CHECK(y.back() == -77.0f);
  y.pop_back();
  if (!c.scatter) return y;
  std::vector<float> plain(y.size());
  const int64_t chunk = args.scatter.chunk;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      plain[static_cast<size_t>(r * columns + j)] = y[static_cast<size_t>(
          (j / chunk) * c.rows * chunk + (c.rows - 1 - r) * chunk + j % chunk)];
    }
  }
  return plain;
}

// Plain loops in double precision on the weights as stored, and for i8 on x as quantised, so that
// only rounding differs.
std::vector<double> Reference(const Case& c, const Inputs& in, const LinearWeight& weight) {
  std::vector<float> w(static_cast<size_t>(c.n * c.k));
  weight.Unpack(0, Tensor::F32(w.data(), {c.n, c.k}));
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  std::vector<double> y(static_cast<size_t>(c.rows * columns)), sums(static_cast<size_t>(c.n));
  for (int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> x(in.x.begin() + r * (c.k + c.x_gap),
                          in.x.begin() + r * (c.k + c.x_gap) + c.k);
    if (c.type == WeightType::kBF16) {
      for (double& v : x) v = BF16ToF32(F32ToBF16(static_cast<float>(v)));
    } else if (c.type == WeightType::kI8) {
      float most = 0;
      for (double v : x) most = std::max(most, static_cast<float>(std::fabs(v)));
      const float inverse = 127.0f / most;
      for (double& v : x) v = std::nearbyint(static_cast<float>(v) * inverse) * (most / 127.0f);
    }
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < c.k; ++i)
        sum += x[static_cast<size_t>(i)] * w[static_cast<size_t>(j * c.k + i)];
      sums[static_cast<size_t>(j)] =
          c.alpha * sum + (c.bias ? in.bias[static_cast<size_t>(j)] : 0.0f);
    }
    for (int64_t j = 0; j < columns; ++j) {
      double v = Activate(c.activation, sums[static_cast<size_t>(j)]);
      if (c.gated) v *= sums[static_cast<size_t>(j + columns)];
      if (c.residual && !c.scatter) v += in.residual[static_cast<size_t>(r * columns + j)];
      y[static_cast<size_t>(r * columns + j)] = v;
    }
  }
  return y;
}

void Check(const Case& c, ThreadPool& pool) {
  INFO("rows " << c.rows << " n " << c.n << " k " << c.k << " type " << static_cast<int>(c.type)
               << " gated " << c.gated << " bias " << c.bias << " residual " << c.residual
               << c.alias << " scatter " << c.scatter << " alpha " << c.alpha << " activation "
               << static_cast<int>(c.activation));
  const Inputs in = MakeInputs(c);
  const LinearWeight w = MakeWeight(in.w, c.n, c.k, c.type, c.gated);
  const std::vector<float> y = Run(c, in, w, pool);
  const std::vector<double> expected = Reference(c, in, w);
  REQUIRE(y.size() == expected.size());
  double most = 1e-3, error = 0;
  for (double v : expected) most = std::max(most, std::fabs(v));
  for (size_t i = 0; i < y.size(); ++i) error = std::max(error, std::fabs(y[i] - expected[i]));
  CHECK(error / most < 2e-6 * std::max(1.0, std::sqrt(static_cast<double>(c.k) / 1000)));
}

std::vector<WeightType> Types() {
  std::vector<WeightType> types = {WeightType::kF32, WeightType::kI8};
  if (WeightTypeSupported(WeightType::kBF16)) types.push_back(WeightType::kBF16);
  return types;
}

// Runs `body` at every instruction set level, with a pool of two threads.
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

TEST_CASE("products of awkward shapes", "[linear]") {
  AtEveryIsa([](ThreadPool& pool) {
    for (WeightType type : Types()) {
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 49, 97}) {
        for (int64_t n : {1, 63, 64, 65, 130}) {
          for (int64_t k : {1, 3, 64, 129}) {
            Case c;
            c.rows = rows, c.n = n, c.k = k, c.type = type, c.x_gap = rows % 3;
            Check(c, pool);
          }
        }
      }
      Case longer;
      longer.rows = 50, longer.n = 70, longer.k = 2501, longer.type = type;
      Check(longer, pool);
      Case pages;  // rows whole pages apart
      pages.rows = 8, pages.n = 33, pages.k = 4096, pages.type = type;
      Check(pages, pool);
      Case empty;
      empty.rows = 0, empty.n = 5, empty.k = 7, empty.type = type;
      Check(empty, pool);
    }
  });
}

TEST_CASE("epilogues", "[linear]") {
  AtEveryIsa([](ThreadPool& pool) {
    for (WeightType type : Types()) {
      for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                    Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
        for (int bits = 0; bits < 32; ++bits) {
          Case c;
          c.rows = 1 + bits % 9;
          c.n = 2 * (bits % 2 ? 99 : 96);
          c.k = 20 + bits;
          c.type = type;
          c.activation = activation;
          c.gated = bits & 1;
          c.bias = bits & 2;
          c.residual = bits & 4;
          c.alias = bits & 8;
          c.alpha = bits & 2 ? 0.3f : 1.0f;
          c.scatter = bits & 16;
          Check(c, pool);
        }
      }
    }
  });
}

TEST_CASE("a row has the same bits alone, in any batch and on any number of threads", "[linear]") {
  AtEveryIsa([](ThreadPool&) {
    for (WeightType type : Types()) {
      Case c;
      c.n = 200, c.k = 700, c.type = type, c.activation = Activation::kGeluErf, c.bias = true;
      c.rows = 103;
      const Inputs in = MakeInputs(c);
      const LinearWeight w = MakeWeight(in.w, c.n, c.k, type, false);
      ThreadPool one(1);
      const std::vector<float> all = Run(c, in, w, one);
      for (int threads : {2, 5}) {
        ThreadPool pool(threads);
        CHECK(std::memcmp(Run(c, in, w, pool).data(), all.data(), all.size() * 4) == 0);
      }
      for (int64_t rows : {1, 2, 3, 5, 6, 7, 11, 50}) {
        Case part = c;
        part.rows = rows;
        for (int64_t first : {0, 17, 53}) {
          Inputs slice = in;
          slice.x.assign(in.x.begin() + first * c.k, in.x.end());
          CHECK(std::memcmp(Run(part, slice, w, one).data(), all.data() + first * c.n,
                            static_cast<size_t>(rows * c.n) * 4) == 0);
        }
      }
    }
  });
}

TEST_CASE("rows whole pages apart have the same bits in every batch", "[linear]") {
  ThreadPool pool(1);
  Case c;
  c.rows = 30, c.n = 40, c.k = 2048;
  const Inputs in = MakeInputs(c);
  for (WeightType type : Types()) {
    c.type = type, c.rows = 30;
    const LinearWeight w = MakeWeight(in.w, c.n, c.k, type, false);
    const std::vector<float> all = Run(c, in, w, pool);
    for (c.rows = 1; c.rows < 30; ++c.rows) {
      CHECK(std::memcmp(Run(c, in, w, pool).data(), all.data(),
                        static_cast<size_t>(c.rows * c.n) * 4) == 0);
    }
  }
}

TEST_CASE("int8 sums and f32 chains are the same bits on every instruction set", "[linear]") {
  ThreadPool pool(1);
  Case c;
  c.rows = 9, c.n = 65, c.k = 333;
  const Inputs in = MakeInputs(c);
  for (WeightType type : {WeightType::kF32, WeightType::kI8}) {
    c.type = type;
    SetCpuIsaForTest(CpuIsa::kBest);
    const LinearWeight w = MakeWeight(in.w, c.n, c.k, type, false);
    const std::vector<float> best = Run(c, in, w, pool);
    for (CpuIsa isa : {CpuIsa::kAvx512, CpuIsa::kAvx2}) {
      SetCpuIsaForTest(isa);
      CHECK(std::memcmp(Run(c, in, w, pool).data(), best.data(), best.size() * 4) == 0);
    }
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

TEST_CASE("int8 sums do not saturate", "[linear]") {
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

TEST_CASE("activations are accurate over their whole range", "[linear]") {
  AtEveryIsa([](ThreadPool& pool) {
    Stream stream(&pool);
    const LinearWeight w = MakeWeight({1.0f}, 1, 1, WeightType::kF32, false);
    std::vector<float> x;
    for (double v = -12.0; v < 12.0; v += 0.0013) x.push_back(static_cast<float>(v));
    for (float v : {0.0f, 1e-30f, -1e-30f, 30.0f, -30.0f, 200.0f, -200.0f}) x.push_back(v);
    const auto rows = static_cast<int64_t>(x.size());
    std::vector<float> y(x.size());
    for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                  Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
      LinearArgs args;
      args.x = Tensor::F32(x.data(), {rows, 1});
      args.w = &w;
      args.activation = activation;
      args.y = Tensor::F32(y.data(), {rows, 1});
      Linear(args, stream);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = Activate(activation, x[i]);
        // Relative to the input: 1 + erf(x) cancels, as it does in the reference models.
        const double unit = std::max(std::fabs(expected), std::fabs(x[i]) * 0.25) * 0x1p-24;
        worst = std::max(worst, std::fabs(y[i] - expected) / std::max(unit, 1e-38));
      }
      INFO("activation " << static_cast<int>(activation));
      CHECK(worst < 8.0);
    }
  });
}

TEST_CASE("not-a-number reaches the output", "[linear]") {
  AtEveryIsa([](ThreadPool& pool) {
    for (WeightType type : Types()) {
      for (Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh,
                                    Activation::kGeluErf, Activation::kSilu, Activation::kTanh}) {
        Case c;
        c.rows = 2, c.n = 3, c.k = 5, c.type = type, c.activation = activation;
        Inputs in = MakeInputs(c);
        in.x[2] = std::nanf("");
        const LinearWeight w = MakeWeight(in.w, c.n, c.k, type, false);
        const std::vector<float> y = Run(c, in, w, pool);
        CHECK(std::isnan(y[0]));
        CHECK(!std::isnan(y[3]));
      }
    }
  });
}

TEST_CASE("packing from every dtype, layout and range", "[linear]") {
  for (WeightType type : Types()) {
    for (bool gated : {false, true}) {
      for (int64_t k : {1, 5, 64, 131}) {
        const int64_t n = 2 * 150;
        std::vector<float> values = Random(n * k, 5);
        std::vector<uint16_t> bf16(values.size()), f16(values.size());
        std::vector<float> transposed(values.size());
        // Values that both 16-bit types hold exactly, so that all sources must give the same bytes.
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

TEST_CASE("rows quantised for a file and packed are the weight packed directly", "[linear]") {
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

TEST_CASE("quantised values and scales can be packed as they are", "[linear]") {
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
  // The sums of each channel are there too: a product with it is right.
  Case c;
  c.rows = 2, c.n = n, c.k = k, c.type = WeightType::kI8;
  ThreadPool pool(1);
  const Inputs in = MakeInputs(c);
  const std::vector<float> y = Run(c, in, w, pool);
  const std::vector<double> reference = Reference(c, in, w);
  for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == Approx(reference[i]).margin(1e-3));
}

}  // namespace
}  // namespace quintet
