// Attention over keys and values in a cache of e4m3 (DType::kF8), on a GPU. The keys and values of
// the problems are rounded to e4m3 first, so the results must be as exact as those with a cache of
// the dtype of the queries.
#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/attention/attention_problem.h"

namespace quintet::attention_test {
namespace {

// Calls `check` with each 16-bit dtype of a GPU.
void ForEachHalf(const std::function<void(TestBackend&, DType)>& check) {
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      if (dtype != DType::kF32) check(backend, dtype);
    }
  });
}

std::vector<float> RunFromCache(const Problem& problem, uint32_t seed, TestBackend& backend) {
  const CachedKeys cached(problem, seed, DType::kF8);
  const Inputs inputs(problem, &cached, backend);
  return Run(inputs.Args(/*from_cache=*/true), backend);
}

void CheckFp8Shape(Shape shape, uint32_t seed) {
  ForEachHalf([&](TestBackend& backend, DType dtype) {
    for (const int64_t gap : {3, 8}) {
      shape.gap = gap;
      Problem problem(shape, seed, dtype);
      problem.kv_data = RoundedTo(DType::kF8, problem.kv_data);
      const std::vector<float> out = RunFromCache(problem, seed + 1, backend);
      CAPTURE(shape.head_dim, gap, static_cast<int>(dtype));
      CHECK(RelativeError(out, Reference(problem)) < Tolerance(dtype));
    }
  });
}

TEST_CASE("attention over a cache of e4m3 equals the reference for every head size",
          "[attention][fp8_cache]") {
  for (int64_t dim : {1, 3, 8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 251, 256}) {
    CheckFp8Shape({.heads = 3,
                   .head_dim = dim,
                   .q_lens = {1, 4, 16, 17, 0, 33, 100, 9},
                   .kv_lens = {45, 70, 16, 17, 5, 0, 131, 9},
                   .positions = {},
                   .causal = dim % 3 == 0,
                   .bias = BiasKind::kTable,
                   .scale = 1.0f / std::sqrt(static_cast<float>(dim))},
                  static_cast<uint32_t>(dim));
  }
}

TEST_CASE("attention over a cache of e4m3 equals the reference for every bias",
          "[attention][fp8_cache]") {
  uint32_t seed = 301;
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    for (const bool causal : {false, true}) {
      for (int64_t dim : {64, 128}) {
        CheckFp8Shape({.heads = 4,
                       .head_dim = dim,
                       .q_lens = Pick({1, 7, 16, 64, 130}, {1, 16, 66}),
                       .kv_lens = Pick({1, 7, 1023, 300, 700}, {1, 261, 80}),
                       .positions = {},
                       .causal = causal,
                       .bias = kind,
                       .scale = 0.125f},
                      seed += 2);
      }
    }
  }
}

TEST_CASE("cross-attention of beams over a cache of e4m3 equals the reference",
          "[attention][fp8_cache]") {
  CheckFp8Shape({.heads = 12,
                 .head_dim = 64,
                 .q_lens = {4, 1, 8, 12, 3, 16},
                 .kv_lens = {128, 5, 77, 511, 1, 15},
                 .positions = {},
                 .scale = 0.5f},
                7);
}

// Few sequences with many keys, which clusters of CTAs share.
TEST_CASE("attention of one query over many keys of e4m3 equals the reference",
          "[attention][fp8_cache]") {
  for (int64_t dim : {64, 128}) {
    CheckFp8Shape({.heads = 2,
                   .head_dim = dim,
                   .q_lens = {1, 1, 4, 1},
                   .kv_lens = Pick({5000, 1, 2511, 129}, {1300, 1, 700, 129}),
                   .positions = {},
                   .causal = true,
                   .bias = BiasKind::kTable,
                   .scale = 0.1f},
                  static_cast<uint32_t>(400 + dim));
  }
}

// The kernel for few queries computes with f16, whose largest value is 65504.
TEST_CASE("attention with large queries over a cache of e4m3 is finite", "[attention][fp8_cache]") {
  ForEachHalf([&](TestBackend& backend, DType dtype) {
    Problem problem({.heads = 2, .head_dim = 64, .q_lens = {3}, .kv_lens = {50}, .gap = 8}, 11,
                    dtype);
    const float factor = dtype == DType::kF16 ? 1e3f : 1e20f;
    for (float& q : problem.q_data) q *= factor;
    problem.q_data = RoundedTo(dtype, problem.q_data);
    problem.kv_data = RoundedTo(DType::kF8, problem.kv_data);
    for (const float x : RunFromCache(problem, 12, backend)) REQUIRE(std::isfinite(x));
  });
}

TEST_CASE("NaN in a cache of e4m3 reaches the queries that see it", "[attention][fp8_cache]") {
  ForEachHalf([&](TestBackend& backend, DType dtype) {
    for (const int32_t q_len : {1, 40}) {
      Problem problem({.heads = 1,
                       .head_dim = 64,
                       .q_lens = {q_len, q_len},
                       .kv_lens = {50, 50},
                       .scale = 0.1f,
                       .gap = 8},
                      13, dtype);
      problem.kv_data = RoundedTo(DType::kF8, problem.kv_data);
      problem.kv_data[static_cast<size_t>(20 * problem.kv_stride)] = NAN;
      const std::vector<float> out = RunFromCache(problem, 14, backend);
      for (int64_t i = 0; i < 2 * q_len * 64; ++i) {
        REQUIRE(std::isnan(out[static_cast<size_t>(i)]) == (i < q_len * 64));
      }
    }
  });
}

}  // namespace
}  // namespace quintet::attention_test
