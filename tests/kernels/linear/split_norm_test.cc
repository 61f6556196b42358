// Split RMSNorm between two GEMMs: the epilogue of the first GEMM writes its output rows times
// gamma and their sums of squares; the second GEMM divides its results by the root mean squares.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "kernels/ops/kv_cache.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr float kLargeEps = 1e-3f;  // large enough to matter

// Sizes of two GEMMs with a split RMSNorm between them. The first GEMM computes y += x W1^T, W1
// [d, k]; its epilogue also writes y * gamma and partial sums of y^2. The second GEMM multiplies
// the normalized y by W2^T, W2 [n, d].
struct SplitNormCase {
  int64_t rows, k, d, n;
  bool gated = false;
  WeightType type = WeightType::kBF16;  // of W1 and W2
};

struct First {
  std::vector<float> y, scaled, squares;
};

// One element of x W^T in double.
double Dot(const std::vector<float>& x, int64_t row, const std::vector<float>& w, int64_t channel,
           int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += double{x[At(row * k + i)]} * w[At(channel * k + i)];
  return sum;
}

// The maximum absolute difference; NaN if any difference is NaN.
double MaxAbsError(const std::vector<float>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  double most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double own = std::fabs(got[i] - expected[i]);
    if (!(own <= most)) most = own;
  }
  return most;
}
double Largest(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values) most = std::max(most, std::fabs(v));
  return most;
}

class Halves {
 public:
  Halves(const SplitNormCase& c, TestBackend& backend)
      : c_(c),
        backend_(backend),
        w1_(StoredWeights(Random(c.d * c.k, 1, 0.1f), c.d, c.k, c.type)),
        w2_(StoredWeights(Random(c.n * c.d, 2, 0.1f), c.n, c.d, c.type)),
        x_(RoundedTo(DType::kBF16, Random(c.rows * c.k, 3))),
        before_(Random(c.rows * c.d, 4, 20.0f)),
        gamma_(Random(c.d, 5)),
        bias_(Random(c.n, 6)),
        first_(MakeWeight(w1_, c.d, c.k, c.type, false, backend.device())),
        second_(MakeWeight(w2_, c.n, c.d, c.type, c.gated, backend.device())) {}

  int64_t parts() const { return SplitNormParts(first_, c_.rows, backend_.stream()); }
  bool can() const {
    return parts() > 0 && SupportsSplitNormInput(second_, c_.rows, backend_.stream());
  }
  const LinearWeight& second() const { return second_; }

  // Runs the first GEMM (the one before the norm) for the rows [begin, end) of x only.
  First RunFirst(int64_t begin, int64_t end) {
    const int64_t rows = end - begin, pitch = c_.d + 8;
    LinearArgs args;
    const std::vector<float> x(x_.begin() + begin * c_.k, x_.begin() + end * c_.k);
    args.x = backend_.Put(x, {rows, c_.k}, DType::kBF16);
    args.w = &first_;
    args.alpha = 0.5f;
    std::vector<float> before(At(rows * pitch));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(before_.begin() + (begin + r) * c_.d, c_.d, before.begin() + r * pitch);
    }
    args.y = backend_.Put(before, {rows, pitch}).Columns(0, c_.d);
    args.residual = args.y;
    squares_ =
        backend_.Poisoned(DType::kF32, {rows, SplitNormParts(first_, rows, backend_.stream())});
    scaled_ = backend_.Poisoned(DType::kBF16, {rows, c_.d + 8}).Columns(0, c_.d);
    args.next_norm = {backend_.Put(gamma_, {c_.d}), scaled_, squares_};
    args.scratch = backend_.Scratch(LinearScratchBytes(first_, rows, backend_.stream()));
    Linear(args, backend_.stream());
    return {backend_.Floats(args.y), backend_.Floats(scaled_), backend_.Floats(squares_)};
  }

  // Returns the arguments of the second GEMM (the one after the norm). Its inputs are outputs of
  // the latest call of RunFirst: the rows times gamma, and the partial sums of their squares.
  LinearArgs SecondArgs(DType dtype) {
    LinearArgs args;
    args.x = scaled_;
    args.x_squares = squares_;
    args.norm_eps = kLargeEps;
    args.w = &second_;
    args.alpha = 0.25f;
    args.bias = backend_.Put(bias_, {c_.n});
    args.activation = Activation::kRelu;
    args.y = backend_.Poisoned(dtype, {c_.rows, columns()});
    args.scratch = backend_.Scratch(LinearScratchBytes(second_, c_.rows, backend_.stream()));
    return args;
  }

  void CheckFirst(const First& got) const {
    std::vector<double> y, scaled, squares;
    const int64_t parts = static_cast<int64_t>(got.squares.size()) / c_.rows;
    REQUIRE(c_.d % parts == 0);
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t j = 0; j < c_.d; ++j) {
        y.push_back(0.5 * Dot(x_, r, w1_, j, c_.k) + before_[At(r * c_.d + j)]);
        scaled.push_back(double{got.y[At(r * c_.d + j)]} * gamma_[At(j)]);
        if (j % (c_.d / parts) == 0) squares.push_back(0);
        squares.back() += double{got.y[At(r * c_.d + j)]} * got.y[At(r * c_.d + j)];
      }
    }
    CHECK(MaxAbsError(got.y, y) <= 1e-5 * Largest(y));
    CHECK(MaxAbsError(got.squares, squares) <= 1e-5 * Largest(squares));
    double error = 0;  // per value
    for (size_t i = 0; i < scaled.size(); ++i) {
      const double own =
          std::fabs(got.scaled[i] - scaled[i]) / std::max(std::fabs(scaled[i]), 1e-9);
      if (!(own <= error)) error = own;
    }
    CHECK(error <= 1.001 * RoundingError(DType::kBF16));
  }

  void CheckSecond(const First& first, DType dtype) {
    const LinearArgs args = SecondArgs(dtype);
    Linear(args, backend_.stream());
    const std::vector<float> got = backend_.Floats(args.y);
    std::vector<double> expected;
    for (int64_t r = 0; r < c_.rows; ++r) {
      double square = 0;
      for (int64_t j = 0; j < c_.d; ++j) {
        square += double{first.y[At(r * c_.d + j)]} * first.y[At(r * c_.d + j)];
      }
      const double scale = 0.25 / std::sqrt(square / static_cast<double>(c_.d) + double{kLargeEps});
      const auto product = [&](int64_t j) {
        return scale * Dot(first.scaled, r, w2_, j, c_.d) + bias_[At(j)];
      };
      for (int64_t j = 0; j < columns(); ++j) {
        const double v = std::max(0.0, product(j));
        expected.push_back(c_.gated ? v * product(j + columns()) : v);
      }
    }
    const double allowed = dtype == DType::kF32 ? 1e-4 : RoundingError(dtype);
    CHECK(MaxAbsError(got, expected) <= allowed * Largest(expected));
    Linear(args, backend_.stream());
    CHECK(backend_.Floats(args.y) == got);  // a second run gives the same bits
  }

 private:
  int64_t columns() const { return c_.gated ? c_.n / 2 : c_.n; }

  const SplitNormCase c_;
  TestBackend& backend_;
  const std::vector<float> w1_, w2_, x_, before_, gamma_, bias_;
  const LinearWeight first_, second_;
  Tensor scaled_, squares_;
};

bool TakesBF16(TestBackend& backend) {
  return WeightTypeSupported(WeightType::kBF16, backend.device());
}

void CheckHalves(SplitNormCase c, TestBackend& backend) {
  for (const WeightType type : {WeightType::kBF16, WeightType::kI8, WeightType::kF8}) {
    c.type = type;
    if (!WeightTypeSupported(type, backend.device())) continue;
    Halves halves(c, backend);
    INFO("rows " << c.rows << " k " << c.k << " d " << c.d << " n " << c.n << " gated " << c.gated
                 << " type " << WeightTypeName(type));
    if (!halves.can()) continue;
    const First first = halves.RunFirst(0, c.rows);
    halves.CheckFirst(first);
    halves.CheckSecond(first, DType::kF32);
    halves.CheckSecond(first, DType::kBF16);
  }
}

TEST_CASE("GEMMs with split RMSNorm equal the separate ops", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    for (int64_t rows : Pick<int64_t>({1, 2, 7, 8, 9, 15, 16, 17, 32, 33, 63, 64, 65, 128, 129},
                                      {1, 8, 9, 33, 129})) {
      CheckHalves({.rows = rows, .k = 96, .d = 1088, .n = 200}, backend);
      CheckHalves({.rows = rows, .k = 72, .d = 64, .n = 48, .gated = true}, backend);
      CheckHalves({.rows = rows, .k = 640, .d = 1280, .n = 176, .gated = true}, backend);
      if (rows <= 33) CheckHalves({.rows = rows, .k = 2048, .d = 2048, .n = 72}, backend);
    }
    for (int64_t rows : Pick<int64_t>({3, 40}, {3})) {
      CheckHalves({.rows = rows, .k = 64, .d = 10240, .n = 80}, backend);
      CheckHalves({.rows = rows, .k = 5120, .d = 1152, .n = 5008, .gated = true}, backend);
    }
  });
}

TEST_CASE("split RMSNorm is supported for the documented GEMMs only", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    Device* device = backend.device();
    for (WeightType type : Types(device)) {
      const LinearWeight w = *LinearWeight::Describe(256, 2048, type, false, device);
      const LinearWeight gated = *LinearWeight::Describe(256, 2048, type, true, device);
      const LinearWeight shallow = *LinearWeight::Describe(256, 1024, type, false, device);
      const LinearWeight odd = *LinearWeight::Describe(250, 2048, type, false, device);
      const bool half = device != nullptr && type == WeightType::kBF16;
      const bool bytes = device != nullptr && IsQuantized(type);
      for (int64_t rows : {1, 8, 9, 64, 256, 1024}) {
        const bool few = rows <= 8, tens = !few && rows <= 64;
        const bool hopper = (half || bytes) && device->hopper();
        const bool shares = half || hopper;
        INFO("rows " << rows << " type " << WeightTypeName(type));
        const int64_t parts = SplitNormParts(w, rows, backend.stream());
        if (few) CHECK((parts > 0) == shares);
        if (tens) CHECK((parts > 0) == hopper);
        if (rows > kMostNormRows || !shares) CHECK(parts == 0);
        CHECK(parts <= w.n() / 16);
        CHECK(SplitNormParts(gated, rows, backend.stream()) == 0);
        CHECK(SplitNormParts(odd, rows, backend.stream()) == 0);
        if (few) CHECK(SupportsSplitNormInput(gated, rows, backend.stream()) == shares);
        if (few)
          CHECK(SupportsSplitNormInput(shallow, rows, backend.stream()) == (bytes && hopper));
        if (tens) CHECK(SupportsSplitNormInput(gated, rows, backend.stream()) == hopper);
        if (!shares) CHECK(!SupportsSplitNormInput(w, rows, backend.stream()));
      }
    }
  });
}

TEST_CASE("split RMSNorm of a row has the same bits alone and in a small batch", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    if (!TakesBF16(backend)) return;
    const SplitNormCase c{.rows = 8, .k = 640, .d = 2048, .n = 64};
    Halves halves(c, backend);
    if (!halves.can()) return;
    const First all = halves.RunFirst(0, c.rows);
    for (int64_t row = 0; row < c.rows; ++row) {
      const First one = halves.RunFirst(row, row + 1);
      const auto same = [&](const std::vector<float>& alone, const std::vector<float>& together) {
        CHECK(std::equal(alone.begin(), alone.end(), together.begin() + row * alone.size()));
      };
      same(one.y, all.y);
      same(one.scaled, all.scaled);
      same(one.squares, all.squares);
    }
  });
}

TEST_CASE("a fused KV store after split RMSNorm equals the separate ops", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    if (!TakesBF16(backend)) return;
    for (int64_t rows : {3, 8, 13, 64}) {
      const int64_t inner = 4 * 24;
      Halves halves({.rows = rows, .k = 128, .d = 1088, .n = 3 * inner}, backend);
      if (!halves.can() || !SupportsKvStore(halves.second(), rows, backend.stream())) continue;
      halves.RunFirst(0, rows);
      LinearArgs args = halves.SecondArgs(DType::kBF16);
      Linear(args, backend.stream());
      const std::vector<float> plain = backend.Floats(args.y.Columns(inner, 3 * inner));

      KvCache cache{.dtype = DType::kBF16,
                    .pages = 17,
                    .layers = 2,
                    .heads = 4,
                    .page_size = 4,
                    .head_dim = 24};
      const int64_t values = cache.pages * cache.page_elements();
      const Tensor memory = backend.Put(std::vector<float>(At(values)), {values}, DType::kBF16);
      cache.data = memory.data;
      std::vector<int32_t> slots;
      for (int32_t r = 0; r < rows; ++r) slots.push_back(66 - r);
      args.kv = {.cache = &cache, .layer = 1, .slots = backend.Plan(slots)};
      Linear(args, backend.stream());
      const std::vector<float> stored = backend.Floats(memory);
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < 2 * inner; ++j) {
          const int64_t at = cache.SlotOffset(slots[At(r)]) +
                             cache.ChunkOffset(1, j >= inner, j % inner / 24) + j % 24;
          wrong += stored[At(at)] == plain[At(r * 2 * inner + j)] ? 0 : 1;
        }
      }
      INFO("rows " << rows);
      CHECK(wrong == 0);
    }
  });
}

}  // namespace
}  // namespace quintet
