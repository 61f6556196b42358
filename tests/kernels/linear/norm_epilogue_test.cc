// GEMMs with a fused input norm, and GEMMs whose epilogue stores keys and values in the KV cache.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// Reference for a GEMM that fuses its input norm and the storing of keys and values: runs norm,
// GEMM and StoreKv as three separate ops. Returns the contents of the KV cache.
std::vector<float> RunSeparateOps(LinearArgs args, const Tensor& cache_memory,
                                  TestBackend& backend) {
  const RmsNormArgs norm{.x = args.x,
                         .gamma = args.norm_gamma,
                         .y = backend.Poisoned(args.y.dtype, {args.x.dim[0], args.x.dim[1]}),
                         .eps = args.norm_eps};
  if (args.norm_gamma.defined()) {
    RmsNorm(norm, backend.stream());
    args.x = norm.y;
    args.norm_gamma = {};
  }
  const KvOutput kv = std::exchange(args.kv, {});
  Linear(args, backend.stream());
  const int64_t inner = kv.cache->heads * kv.cache->head_dim;
  const auto heads = [&](int64_t part) {
    return args.y.Columns(part * inner, (part + 1) * inner).SplitLast(kv.cache->head_dim);
  };
  StoreKv({.k = heads(1), .v = heads(2), .cache = kv.cache, .layer = kv.layer, .slots = kv.slots},
          backend.stream());
  return backend.Floats(cache_memory);
}

TEST_CASE("GEMMs with fused norm and fused KV store equal the separate ops", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    for (WeightType type :
         {WeightType::kBF16, WeightType::kF16, WeightType::kI8, WeightType::kF8}) {
      for (int64_t rows : {1, 3, 8, 13, 32, 33, 100, 129, 256}) {
        const int64_t k = 640, inner = 4 * 24;
        if (!WeightTypeSupported(type, backend.device())) continue;
        const LinearWeight w =
            MakeWeight(Random(3 * inner * k, 1), 3 * inner, k, type, false, backend.device());
        if (!SupportsKvStore(w, rows, backend.stream())) continue;
        const DType dtype = ActivationType(type, backend.device());
        KvCache cache{
            .dtype = dtype, .pages = 65, .layers = 2, .heads = 4, .page_size = 4, .head_dim = 24};
        std::vector<int32_t> slots;
        for (int32_t r = 0; r < rows; ++r) slots.push_back(r == 2 ? -1 : 259 - r);
        const std::vector<float> zeros(static_cast<size_t>(cache.pages * cache.page_elements()));
        LinearArgs args;
        args.w = &w;
        args.x = backend.Put(Random(rows * k, 2, 30.0f), {rows, k});
        const bool norms = SupportsFusedNorm(args, backend.stream());
        if (!norms) args.x = backend.Put(Random(rows * k, 2, 30.0f), {rows, k}, dtype);
        if (norms) args.norm_gamma = backend.Put(Random(k, 3), {k});
        args.norm_eps = 1e-6f;
        args.y = backend.Poisoned(dtype, {rows, 3 * inner});
        args.scratch = backend.Scratch(LinearScratchBytes(w, rows, backend.stream()));
        const auto run = [&](bool at_once) {
          const Tensor memory = backend.Put(zeros, {static_cast<int64_t>(zeros.size())}, dtype);
          cache.data = memory.data;
          args.kv = {.cache = &cache, .layer = 1, .slots = backend.Plan(slots)};
          if (!at_once) return RunSeparateOps(args, memory, backend);
          Linear(args, backend.stream());
          return backend.Floats(memory);
        };
        const std::vector<float> expected = run(false), got = run(true);
        double most = 0, error = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          most = std::max(most, std::fabs(double{expected[i]}));
          const double own = std::fabs(double{got[i]} - expected[i]);
          error = own <= error ? error : own;
          CHECK((expected[i] == 0) == (got[i] == 0));  // the same elements are written
        }
        INFO("rows " << rows << " type " << static_cast<int>(type));
        CHECK(error <= 4 * RoundingError(dtype) * most);
      }
    }
  });
}

struct NormedCase {
  int64_t rows, n, k;
  bool centred, gated = false;
};

// Runs a GEMM with a fused input norm and f32 output y, and checks y against a reference that
// computes norm and GEMM by loops in double.
void CheckNormed(const NormedCase& c, WeightType type, TestBackend& backend) {
  constexpr float kEps = 1e-5f, kOffset = 50.0f;
  const LinearWeight shape = *LinearWeight::Describe(c.n, c.k, type, c.gated, backend.device());
  LinearArgs args;
  args.w = &shape;
  args.x = Tensor::F32(nullptr, {c.rows, c.k});
  if (!SupportsFusedNorm(args, backend.stream())) return;
  const std::vector<float> w = RoundedTo(WeightDType(type), Random(c.n * c.k, 1));
  const LinearWeight weight = MakeWeight(w, c.n, c.k, type, c.gated, backend.device());
  const std::vector<float> gamma = Random(c.k, 2), beta = Random(c.k, 3), bias = Random(c.n, 4);
  std::vector<float> x = Random(c.rows * c.k, 5, 3.0f);
  if (c.centred) {
    for (float& v : x) v += kOffset;
  }
  const int64_t columns = c.gated ? c.n / 2 : c.n;
  args.x = backend.Put(x, {c.rows, c.k});
  args.norm_gamma = backend.Put(gamma, {c.k});
  if (c.centred) args.norm_beta = backend.Put(beta, {c.k});
  args.norm_eps = kEps;
  args.w = &weight;
  args.bias = backend.Put(bias, {c.n});
  args.y = backend.Poisoned(DType::kF32, {c.rows, columns});
  Linear(args, backend.stream());
  const std::vector<float> y = backend.Floats(args.y);
  double most = 0, error = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* row = x.data() + r * c.k;
    const auto k = static_cast<size_t>(c.k);
    double mean = 0, square = 0;
    for (size_t i = 0; i < k && c.centred; ++i) mean += row[i] / static_cast<double>(c.k);
    for (size_t i = 0; i < k; ++i) square += (row[i] - mean) * (row[i] - mean);
    const double scale = 1 / std::sqrt(square / static_cast<double>(c.k) + kEps);
    const auto product = [&](int64_t channel) {
      double sum = bias[static_cast<size_t>(channel)];
      for (size_t i = 0; i < k; ++i) {
        const double v = (row[i] - mean) * scale * gamma[i] + (c.centred ? beta[i] : 0.0f);
        sum += v * w[static_cast<size_t>(channel) * k + i];
      }
      return sum;
    };
    for (int64_t j = 0; j<columns; j += c.n> 1000 ? 61 : 1) {
      const double expected = product(j) * (c.gated ? product(j + columns) : 1);
      most = std::max(most, std::fabs(expected));
      const double own = std::fabs(y[static_cast<size_t>(r * columns + j)] - expected);
      error = own <= error ? error : own;
    }
  }
  INFO("rows " << c.rows << " n " << c.n << " k " << c.k << " centred " << c.centred << " gated "
               << c.gated << " type " << static_cast<int>(type));
  CHECK(error <= 2 * RoundingError(WeightDType(type)) * most);
}

TEST_CASE("GEMMs with fused norm equal the separate ops", "[linear]") {
  ForEachBackend([](TestBackend& backend) {
    for (WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      if (!WeightTypeSupported(type, backend.device())) continue;
      for (int64_t rows : {1, 5, 8, 13, 32}) {
        for (int64_t k : {64, 768, 1600, 2048}) {
          for (bool centred : {false, true}) {
            CheckNormed({.rows = rows, .n = 42, .k = k, .centred = centred}, type, backend);
            CheckNormed({.rows = rows, .n = 60, .k = k, .centred = centred, .gated = true}, type,
                        backend);
          }
        }
      }
      CheckNormed({.rows = 6, .n = 9000, .k = 640, .centred = true}, type, backend);
      CheckNormed({.rows = 2, .n = 9000, .k = 2048, .centred = false, .gated = true}, type,
                  backend);
    }
  });
}

}  // namespace
}  // namespace quintet
