// GEMMs that store keys and values in a cache of e4m3 (DType::kF8), on a GPU. The bytes must be
// exactly those of the same GEMM with a cache of the dtype of y, rounded to e4m3 afterwards.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "kernels/ops/kv_cache.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// Calls `run` with a memory of `count` zeros of the dtype of y, then with one of e4m3, and
// compares.
template <typename Run>
void CheckBytes(int64_t count, DType dtype, TestBackend& backend, const Run& run) {
  const std::vector<float> zeros(At(count));
  const auto result = [&](DType type) {
    const Tensor memory = backend.Put(zeros, {count}, type);
    run(memory);
    return backend.Floats(memory);
  };
  const std::vector<float> expected = RoundedTo(DType::kF8, result(dtype));
  const auto [least, most] = std::minmax_element(expected.begin(), expected.end());
  CHECK(*least == -448.0f);  // some values are beyond the range of e4m3
  CHECK(*most == 448.0f);
  CHECK(result(DType::kF8) == expected);
}

TEST_CASE("GEMMs store exactly rounded keys and values in a cache of e4m3", "[linear][fp8_cache]") {
  ForEachBackend([](TestBackend& backend) {
    if (backend.device() == nullptr) return;
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      for (const int64_t rows : {1, 3, 8, 9, 13, 32, 64, 100, 256}) {
        for (const int64_t head_dim : {24, 64}) {
          const int64_t k = 640, heads = 4, inner = heads * head_dim;
          const LinearWeight w =
              MakeWeight(Random(3 * inner * k, 1), 3 * inner, k, type, false, backend.device());
          if (!SupportsKvStore(w, rows, backend.stream())) continue;
          const DType dtype = WeightDType(type);
          std::vector<int32_t> slots;
          for (int32_t r = 0; r < rows; ++r) slots.push_back(r == 2 ? -1 : 259 - r);
          LinearArgs args;
          args.w = &w;
          args.x = backend.Put(Random(rows * k, 2, 16.0f), {rows, k}, dtype);
          args.y = backend.Poisoned(dtype, {rows, 3 * inner});
          args.scratch = backend.Scratch(LinearScratchBytes(w, rows, backend.stream()));
          KvCache cache{
              .pages = 65, .layers = 2, .heads = heads, .page_size = 4, .head_dim = head_dim};
          CAPTURE(rows, head_dim, WeightTypeName(type));
          CheckBytes(cache.pages * cache.page_elements(), dtype, backend,
                     [&](const Tensor& memory) {
                       cache.dtype = memory.dtype;
                       cache.data = memory.data;
                       args.kv = {.cache = &cache, .layer = 1, .slots = backend.Plan(slots)};
                       Linear(args, backend.stream());
                     });
        }
      }
    }
  });
}

struct ScatterCase {
  int64_t rows, chunk;
  int64_t begin = 0;  // where the first chunk begins
};

void CheckScatter(const ScatterCase& c, WeightType type, TestBackend& backend) {
  const int64_t k = 256, chunks = 12, n = chunks * c.chunk;
  const LinearWeight w = MakeWeight(Random(n * k, 1), n, k, type, false, backend.device());
  const DType dtype = ActivationType(type, backend.device());
  // Chunk j of row r begins at (j * rows + order[r]) * chunk + begin.
  std::vector<int64_t> row_offset(At(c.rows)), chunk_offset;
  std::iota(row_offset.begin(), row_offset.end(), 0);
  std::shuffle(row_offset.begin(), row_offset.end(), std::mt19937(3));
  for (int64_t& offset : row_offset) offset *= c.chunk;
  for (int64_t j = 0; j < chunks; ++j) chunk_offset.push_back(j * c.rows * c.chunk + c.begin);
  LinearArgs args;
  args.w = &w;
  args.x = backend.Put(Random(c.rows * k, 2, 16.0f), {c.rows, k}, dtype);
  args.scratch = backend.Scratch(LinearScratchBytes(w, c.rows, backend.stream()));
  CAPTURE(c.rows, c.chunk, c.begin, WeightTypeName(type));
  CheckBytes(c.rows * n + c.begin, dtype, backend, [&](const Tensor& memory) {
    args.scatter = {memory.data, memory.dtype, backend.Plan(row_offset).data(),
                    backend.Plan(chunk_offset).data(), c.chunk};
    Linear(args, backend.stream());
  });
}

TEST_CASE("GEMMs scatter exactly rounded values to a cache of e4m3", "[linear][fp8_cache]") {
  ForEachBackend([](TestBackend& backend) {
    if (backend.device() == nullptr) return;
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kI8,
                                  WeightType::kF8, WeightType::kI8W8A8, WeightType::kF8W8A8}) {
      if (!WeightTypeSupported(type, backend.device())) continue;
      for (const int64_t rows : {1, 7, 40, 100, 300, 1100}) {
        CheckScatter({rows, 24}, type, backend);
        CheckScatter({rows, 64}, type, backend);
        CheckScatter({rows, 20}, type, backend);
        CheckScatter({rows, 64, 4}, type, backend);
      }
    }
  });
}

}  // namespace
}  // namespace quintet
