// Tests GEMMs that add LoRA terms themselves (LinearArgs::lora), against a reference in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear/lora.h"
#include "kernels/linear/weight.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/linear/random_adapters.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// A GEMM with LoRA terms: the weight has n = parts * part_columns channels.
struct GemmCase {
  int64_t rows, k, parts, part_columns;
  bool gated = false;
  bool cached = false;       // stores keys and values to a cache
  bool split_input = false;  // x_squares
  bool next_norm = false;
  int64_t least_rank = 1;
  bool one_adapter = false;  // the rows have adapter 2 or none
};

std::vector<int32_t> AdaptersOf(const GemmCase& c) {
  std::vector<int32_t> adapters = AdapterOfRows(c.rows);
  for (int32_t& adapter : adapters) {
    if (c.one_adapter && adapter >= 0) adapter = 2;
  }
  return adapters;
}

// Runs one GEMM with LoRA terms, and compares it to a reference in double.
class LoraGemm {
 public:
  LoraGemm(const GemmCase& c, WeightType type, TestBackend& backend)
      : c_(c),
        dtype_(WeightDType(type)),
        n_(c.parts * c.part_columns),
        columns_(c.gated ? n_ / 2 : n_),
        backend_(backend),
        adapters_({c.parts, c.part_columns, c.k, c.least_rank}, dtype_, backend),
        x_(RoundedTo(dtype_, Random(c.rows * c.k, 1, 2.0f))),
        w_(RoundedTo(dtype_, Random(n_ * c.k, 2, 0.1f))),
        before_(Random(c.rows * columns_, 3)),
        squares_(Random(c.rows * kSquareParts, 4)),
        gamma_(Random(columns_, 5)),
        rows_(AdaptersOf(c)),
        weight_(MakeWeight(w_, n_, c.k, type, c.gated, backend.device())) {
    for (float& square : squares_) square = 1.0f + std::fabs(square) * static_cast<float>(c.k);
    args_.x = backend.Put(x_, {c.rows, c.k}, dtype_);
    args_.w = &weight_;
    args_.alpha = 0.5f;
    const int64_t bytes = LoraWordBytes(adapters_.weight(), backend.stream());
    const std::vector<char> zeros(static_cast<size_t>(bytes));
    args_.lora = {.weight = &adapters_.weight(),
                  .adapters = backend.Plan(rows_),
                  .one_adapter = c.one_adapter,
                  .words = backend.PutBytes(zeros.data(), bytes, DType::kI8, {bytes})};
    args_.scratch = backend.Scratch(LinearScratchBytes(weight_, c.rows, backend.stream()));
    if (c.gated) args_.activation = Activation::kRelu;
    args_.y = backend.Put(before_, {c.rows, columns_}, YType());
    if (!c.gated && !c.cached) args_.residual = args_.y;
    if (c.split_input) {
      args_.x_squares = backend.Put(squares_, {c.rows, kSquareParts});
      args_.norm_eps = kEps;
    }
    if (c.next_norm) {
      const int64_t parts = SplitNormParts(weight_, c.rows, backend.stream());
      if (parts == 0) return;
      args_.next_norm = {backend.Put(gamma_, {columns_}),
                         backend.Poisoned(dtype_, {c.rows, columns_}),
                         backend.Poisoned(DType::kF32, {c.rows, parts})};
    }
    if (!c.cached) return;
    cache_ = {.dtype = dtype_,
              .pages = (c.rows + 3) / 4,
              .layers = 2,
              .heads = n_ / 3 / kHeadDim,
              .page_size = 4,
              .head_dim = kHeadDim};
    cache_memory_ = backend.Poisoned(dtype_, {cache_.pages * cache_.page_elements()});
    cache_.data = cache_memory_.data;
    for (int64_t r = 0; r < c.rows; ++r) {
      slots_.push_back(r == 3 ? -1 : static_cast<int32_t>(c.rows - 1 - r));
    }
    args_.kv = {.cache = &cache_, .layer = 1, .slots = backend.Plan(slots_)};
  }

  bool Supported() const {
    if (c_.next_norm && !args_.next_norm.gamma.defined()) return false;
    if (c_.split_input && !SupportsSplitNormInput(weight_, c_.rows, backend_.stream())) {
      return false;
    }
    return SupportsLora(args_, backend_.stream());
  }

  void Check() {
    const std::vector<float> y = RunTwice();
    std::vector<float> cache;
    if (c_.cached) cache = backend_.Floats(cache_memory_);
    std::vector<double> expected;
    double error = 0.0, most = 0.0;
    for (int64_t r = 0; r < c_.rows; ++r) {
      const std::vector<double> sums = Sums(r);
      for (int64_t column = 0; column < columns_; ++column) {
        double value = sums[column];
        if (c_.gated) value = std::max(value, 0.0) * sums[column + columns_];
        if (args_.residual.defined()) value += before_[r * columns_ + column];
        expected.push_back(value);
        const int64_t inner = n_ / 3;
        double got = y[r * columns_ + column];
        if (c_.cached && column >= inner) {
          if (slots_[r] < 0) continue;
          const int64_t head = (column - inner) % inner / kHeadDim;
          got = cache[cache_.SlotOffset(slots_[r]) +
                      cache_.ChunkOffset(1, column >= 2 * inner, head) + column % kHeadDim];
        }
        most = std::max(most, std::fabs(value));
        const double own = std::fabs(value - got);
        if (!(own <= error)) error = own;
      }
    }
    INFO("rows " << c_.rows << " k " << c_.k << " parts " << c_.parts << " of " << c_.part_columns
                 << " gated " << c_.gated << " dtype " << DTypeName(dtype_) << " one "
                 << c_.one_adapter);
    CHECK(error <= 4 * RoundingError(dtype_) * most);
    const int32_t calls = c_.one_adapter ? 0 : 2;
    CHECK(backend_.Ints(adapters_.counter()) == std::vector<int32_t>{(1 + calls) << 16, 0});
    if (c_.next_norm) CheckNextNorm(expected, most);
  }

 private:
  static constexpr int64_t kSquareParts = 5, kHeadDim = 8;

  DType YType() const { return c_.cached ? dtype_ : DType::kF32; }

  // Results are the same from run to run.
  std::vector<float> RunTwice() {
    Linear(args_, backend_.stream());
    const std::vector<float> first = backend_.Floats(args_.y);
    args_.y = backend_.Put(before_, {c_.rows, columns_}, YType());
    if (args_.residual.defined()) args_.residual = args_.y;
    Linear(args_, backend_.stream());
    const std::vector<float> second = backend_.Floats(args_.y);
    CHECK(first == second);
    return second;
  }

  // All n sums of a row, after alpha and the norm of x.
  std::vector<double> Sums(int64_t r) const {
    const std::vector<double> x(x_.begin() + r * c_.k, x_.begin() + (r + 1) * c_.k);
    double scale = args_.alpha;
    if (c_.split_input) {
      double square = 0.0;
      for (int64_t p = 0; p < kSquareParts; ++p) square += squares_[r * kSquareParts + p];
      scale /= std::sqrt(square / static_cast<double>(c_.k) + kEps);
    }
    std::vector<double> sums;
    for (int64_t column = 0; column < n_; ++column) {
      double sum = adapters_.Correction(rows_[r], x.data(), column);
      for (int64_t j = 0; j < c_.k; ++j) sum += x[j] * w_[column * c_.k + j];
      sums.push_back(scale * sum);
    }
    return sums;
  }

  // y: the rows that the norm is of.
  void CheckNextNorm(const std::vector<double>& y, double most) {
    const std::vector<float> scaled = backend_.Floats(args_.next_norm.scaled);
    const std::vector<float> squares = backend_.Floats(args_.next_norm.squares);
    const int64_t parts = args_.next_norm.squares.dim[1], width = columns_ / parts;
    double error = 0.0, square_error = 0.0;
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t p = 0; p < parts; ++p) {
        double sum = 0.0;
        for (int64_t column = p * width; column < (p + 1) * width; ++column) {
          const double value = y[r * columns_ + column];
          sum += value * value;
          error =
              std::max(error, std::fabs(value * gamma_[column] - scaled[r * columns_ + column]));
        }
        square_error = std::max(square_error, std::fabs(sum - squares[r * parts + p]) / sum);
      }
    }
    CHECK(error <= 8 * RoundingError(dtype_) * most);
    CHECK(square_error <= 0.02);
  }

  const GemmCase c_;
  const DType dtype_;
  const int64_t n_, columns_;
  TestBackend& backend_;
  const Adapters adapters_;
  const std::vector<float> x_, w_, before_;
  std::vector<float> squares_, gamma_;
  const std::vector<int32_t> rows_;
  std::vector<int32_t> slots_;
  const LinearWeight weight_;
  KvCache cache_;
  Tensor cache_memory_;
  LinearArgs args_;
};

std::vector<GemmCase> GemmCases(int64_t rows) {
  std::vector<GemmCase> cases = {{rows, 768, 1, 768},
                                 {rows, 768, 3, 768},
                                 {rows, 520, 1, 128},
                                 {rows, 2048, 1, 768},
                                 {.rows = rows, .k = 264, .parts = 1, .part_columns = 128}};
  cases.back().least_rank = 40;
  cases.push_back({.rows = rows, .k = 768, .parts = 2, .part_columns = 512, .gated = true});
  cases.push_back(cases.back());
  cases.back().least_rank = 17;
  cases.push_back({.rows = rows, .k = 512, .parts = 2, .part_columns = 1024, .gated = true});
  cases.back().split_input = true;
  cases.push_back({.rows = rows, .k = 256, .parts = 3, .part_columns = 64, .cached = true});
  cases.push_back({.rows = rows, .k = 768, .parts = 3, .part_columns = 768, .cached = true});
  cases.back().split_input = true;
  cases.push_back({.rows = rows, .k = 2048, .parts = 1, .part_columns = 2048, .next_norm = true});
  cases.push_back({.rows = rows, .k = 768, .parts = 1, .part_columns = 512, .next_norm = true});
  cases.back().split_input = true;
  return cases;
}

TEST_CASE("A GEMM adds LoRA terms itself", "[linear][lora]") {
  ForEachBackend([](TestBackend& backend) {
    int64_t supported = 0;
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      if (backend.device() == nullptr) continue;
      for (const int64_t rows : Pick<int64_t>({1, 4, 9, 20, 32, 50, 64, 100, 250}, {4, 50})) {
        for (GemmCase c : GemmCases(rows)) {
          if (c.split_input && type == WeightType::kF16) continue;
          for (const bool one : {false, true}) {
            c.one_adapter = one;
            LoraGemm gemm(c, type, backend);
            if (!gemm.Supported()) continue;
            ++supported;
            gemm.Check();
          }
        }
      }
    }
    const bool hopper = backend.device() != nullptr && backend.device()->hopper();
    if (hopper) CHECK(supported > Pick<int64_t>(200, 40));
    if (!hopper) CHECK(supported == 0);
  });
}

// A GEMM whose rows all have one adapter.
struct MergedCase {
  int64_t rows, k, parts, part_columns;
  bool gated = false, residual = false, scattered = false;
  int32_t adapter = 1;
};

void CheckMerged(const MergedCase& c, WeightType type, TestBackend& backend) {
  Stream& stream = backend.stream();
  const DType dtype = ActivationType(type, backend.device());
  const int64_t n = c.parts * c.part_columns, columns = c.gated ? n / 2 : n;
  const Adapters adapters({c.parts, c.part_columns, c.k}, dtype, backend);
  const std::vector<float> x = RoundedTo(dtype, Random(c.rows * c.k, 1, 2.0f));
  const std::vector<float> w = StoredWeights(Random(n * c.k, 2, 0.1f), n, c.k, type);
  const std::vector<float> before = RoundedTo(dtype, Random(c.rows * columns, 3));
  const LinearWeight weight = MakeWeight(w, n, c.k, type, c.gated, backend.device());
  LinearArgs args;
  args.x = backend.Put(x, {c.rows, c.k}, dtype);
  args.w = &weight;
  args.lora = {.weight = &adapters.weight(),
               .adapter = c.adapter,
               .copy = backend.Scratch(LoraCopyBytes(weight, stream))};
  args.scratch = backend.Scratch(LinearScratchBytes(weight, c.rows, stream));
  if (c.gated) args.activation = Activation::kRelu;
  const Tensor y = backend.Put(before, {c.rows, columns}, dtype);
  // Rows of y in reverse order, chunks of columns in place.
  constexpr int64_t kChunk = 64;
  std::vector<int64_t> row_offset, chunk_offset;
  for (int64_t r = 0; r < c.rows; ++r) row_offset.push_back((c.rows - 1 - r) * columns);
  for (int64_t at = 0; at < columns; at += kChunk) chunk_offset.push_back(at);
  if (c.scattered) {
    args.scatter = {y.data, dtype, backend.Plan(row_offset).data(),
                    backend.Plan(chunk_offset).data(), kChunk};
  } else {
    args.y = y;
  }
  if (c.residual) args.residual = y;
  REQUIRE(SupportsLora(args, stream));
  Linear(args, stream);
  const std::vector<float> got = backend.Floats(y);
  double error = 0.0, most = 0.0;
  // A sample of the rows and columns.
  const int64_t column_step = columns > 512 ? 37 : 1;
  for (int64_t r = 0; r < c.rows; r += 97) {
    const std::vector<double> row(x.begin() + r * c.k, x.begin() + (r + 1) * c.k);
    const auto sum = [&](int64_t column) {
      double sum = adapters.Correction(c.adapter, row.data(), column);
      for (int64_t j = 0; j < c.k; ++j) sum += row[j] * w[column * c.k + j];
      return sum;
    };
    const int64_t stored = c.scattered ? c.rows - 1 - r : r;
    for (int64_t column = r % column_step; column < columns; column += column_step) {
      double value = sum(column);
      if (c.gated) value = std::max(value, 0.0) * sum(column + columns);
      if (c.residual) value += before[r * columns + column];
      most = std::max(most, std::fabs(value));
      const double own = std::fabs(value - got[stored * columns + column]);
      if (!(own <= error)) error = own;
    }
  }
  INFO("type " << WeightTypeName(type) << " rows " << c.rows << " k " << c.k << " n " << n
               << " gated " << c.gated << " scattered " << c.scattered);
  CHECK(error <= 4 * RoundingError(dtype) * most);
}

TEST_CASE("A GEMM of many rows has the LoRA terms of one adapter", "[linear][lora]") {
  ForEachBackend([](TestBackend& backend) {
    if (backend.device() == nullptr) return;
    for (const WeightType type : Types(backend.device())) {
      if (type == WeightType::kF32) continue;
      for (const MergedCase& c :
           {MergedCase{.rows = 1024, .k = 256, .parts = 3, .part_columns = 128},
            MergedCase{.rows = 1100, .k = 264, .parts = 1, .part_columns = 72, .residual = true},
            MergedCase{.rows = 1500, .k = 520, .parts = 2, .part_columns = 256, .gated = true},
            // Several slices of the weight.
            MergedCase{.rows = 1030, .k = 4096, .parts = 2, .part_columns = 4096, .residual = true},
            MergedCase{.rows = 1200, .k = 192, .parts = 4, .part_columns = 64, .scattered = true},
            // An adapter without terms for one of the parts.
            MergedCase{.rows = 1024, .k = 64, .parts = 3, .part_columns = 64, .adapter = 2}}) {
        CheckMerged(c, type, backend);
      }
    }
  });
}

}  // namespace
}  // namespace quintet
