#include <span>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/attention/attention_problem.h"

namespace quintet::attention_test {
namespace {

void CheckShape(Shape shape, uint32_t seed) {
  ForEachBackend([&](TestBackend& backend) {
    for (const Layout& layout : Layouts(backend, seed)) {
      shape.gap = layout.gap;
      const Problem problem(shape, seed, layout.dtype);
      const CachedKeys cached(problem, seed + 1);
      const Inputs inputs(problem, &cached, backend);
      const std::vector<double> expected = Reference(problem);
      const std::vector<float> packed = Run(inputs.Args(false), backend);
      const std::vector<float> in_cache = Run(inputs.Args(true), backend);
      if (layout.dtype == DType::kF32) {
        CHECK(WorstError(packed, expected) < 4e-6);
        CHECK(SameBits(packed, in_cache));
      } else {
        CHECK(RelativeError(packed, expected) < Tolerance(layout.dtype));
        CHECK(RelativeError(in_cache, expected) < Tolerance(layout.dtype));
      }
    }
  });
}

TEST_CASE("attention equals the reference in double for every bias", "[attention]") {
  uint32_t seed = 1;
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    for (bool causal : {false, true}) {
      for (bool asymmetric : {false, true}) {
        if (asymmetric && kind != BiasKind::kAlibi) continue;
        CheckShape({.heads = Pick<int64_t>(4, 2),
                    .head_dim = 24,
                    .q_lens = Pick({1, 7, 63, 64, 65, 127, 129}, {1, 65, 129}),
                    .kv_lens = Pick({1, 7, 63, 64, 65, 127, 129}, {1, 65, 129}),
                    .positions = {},
                    .causal = causal,
                    .bias = kind,
                    .asymmetric = asymmetric},
                   seed += 2);
      }
    }
  }
}

TEST_CASE("attention equals the reference for every head size", "[attention]") {
  for (int64_t dim : {1, 3, 16, 24, 32, 64, 80, 96, 128, 251, 256}) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    CheckShape({.heads = Pick<int64_t>(2, 1),
                .head_dim = dim,
                .q_lens = Pick({5, 0, 33, 100, 9}, {5, 0, 9, 66}),
                .kv_lens = Pick({70, 3, 0, 130, 9}, {70, 3, 0, 80}),
                .positions = Pick({65, 0, 0, 30, 0}, {65, 0, 0, 14}),
                .causal = dim % 2 == 0,
                .bias = BiasKind::kTable,
                .scale = scale},
               static_cast<uint32_t>(dim));
  }
}

TEST_CASE("attention over a thousand keys equals the reference", "[attention]") {
  uint32_t seed = 99;
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    for (int64_t dim : {64, 128}) {
      CheckShape({.heads = Pick<int64_t>(2, 1),
                  .head_dim = dim,
                  .q_lens = Pick({600, 1, 4, 130}, {70, 1}),
                  .kv_lens = Pick({1000, 1000, 777, 130}, {300, 261}),
                  .positions = {},
                  .causal = dim == 64 && kind != BiasKind::kNone,
                  .bias = kind,
                  .scale = 0.125f},
                 seed += 2);
    }
  }
}

// These problems have more query tiles and keys than the GPU kernel for short sequences supports.
TEST_CASE("attention with many heads over a thousand keys equals the reference", "[attention]") {
  uint32_t seed = 131;
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi}) {
    for (bool causal : {false, true}) {
      CheckShape({.heads = 16,
                  .head_dim = 16,
                  .q_lens = {200, 20},
                  .kv_lens = {1100, 130},
                  .positions = {450, 110},
                  .causal = causal,
                  .bias = kind,
                  .asymmetric = causal,
                  .scale = 0.5f},
                 seed += 2);
    }
  }
}

TEST_CASE(
    "attention equals the reference with bias tables that saturate at small and large distances",
    "[attention]") {
  for (int64_t saturation : {1, 128, 256, 257}) {
    for (int64_t dim : {64, 128}) {
      CheckShape({.heads = Pick<int64_t>(2, 1),
                  .head_dim = dim,
                  .q_lens = Pick({700, 90}, {70, 5}),
                  .kv_lens = Pick({700, 500}, {400, 140}),
                  .positions = {},
                  .causal = (saturation + dim / 64) % 2 == 0,
                  .bias = BiasKind::kTable,
                  .scale = 0.125f,
                  .saturation = saturation},
                 static_cast<uint32_t>(saturation + dim / 32));
    }
  }
}

TEST_CASE("attention equals the reference with ALiBi far from the diagonal", "[attention]") {
  for (int64_t dim : {64, 128}) {
    for (bool asymmetric : {false, true}) {
      // Some ALiBi slopes are as small as 2^-8: with them even keys at a distance of a thousand
      // positions have an influence on the result.
      CheckShape({.heads = Pick<int64_t>(8, 2),
                  .head_dim = dim,
                  .q_lens = Pick({300, 40}, {70, 20}),
                  .kv_lens = Pick({900, 1100}, {400, 500}),
                  .positions = Pick({500, 0}, {200, 0}),
                  .causal = asymmetric && dim == 128,
                  .bias = BiasKind::kAlibi,
                  .asymmetric = asymmetric,
                  .scale = 0.125f},
                 static_cast<uint32_t>(dim) / 32 + (asymmetric ? 2 : 0));
    }
  }
}

// The FIRE bias is computed by a small network and is piecewise linear in a function of the
// distance; a knot is a point where the slope changes. Tests networks with 64 knots and with more
// knots than the GPU kernels support, at distances where several knots are passed within a few keys
// and where no knot is passed within hundreds of keys.
TEST_CASE("attention equals the reference with FIRE of few and many knots", "[attention]") {
  for (int64_t knots : {1, 33, 64, 65}) {
    for (int64_t dim : {64, 128}) {
      CheckShape({.heads = Pick<int64_t>(2, 1),
                  .head_dim = dim,
                  .q_lens = Pick({300, 40}, {70, 20}),
                  .kv_lens = Pick({900, 1100}, {400, 500}),
                  .positions = Pick({500, 0}, {200, 0}),
                  .causal = (knots + dim / 64) % 2 == 0,
                  .bias = BiasKind::kFire,
                  .scale = 0.125f,
                  .knots = knots},
                 static_cast<uint32_t>(knots + dim / 32));
    }
  }
}

// A kernel may skip keys whose ALiBi bias makes them negligible, but not a distant key with a large
// score.
TEST_CASE("ALiBi does not skip a distant key with a large score", "[attention]") {
  for (int64_t dim : {64, 128}) {
    ForEachBackend([&](TestBackend& backend) {
      for (const Layout& layout : Layouts(backend, 8)) {
        Problem problem({.heads = 2,
                         .head_dim = dim,
                         .q_lens = Pick({200, 40}, {70, 10}),
                         .kv_lens = Pick({4200, 1300}, {4100, 1100}),
                         .positions = {3900, 10},
                         .bias = BiasKind::kAlibi,
                         .scale = 0.125f,
                         .gap = layout.gap},
                        91, layout.dtype);
        // Sets key 130 of head 1 in the first sequence to a multiple of query 20. The key is
        // distant, but its score is so large that the output for query 20 is the value of this key.
        const float* query = problem.Query(20, 1);
        float* key = problem.kv_data.data() + 130 * problem.kv_stride + dim;
        for (int64_t c = 0; c < dim; ++c) key[c] = 128.0f * query[c];
        const std::vector<double> expected = Reference(problem);
        const size_t at = static_cast<size_t>((20 * 2 + 1) * dim);
        REQUIRE(std::abs(expected[at] - double{problem.Value(130, 1)[0]}) < 1e-6);
        const Inputs inputs(problem, nullptr, backend);
        const std::vector<float> out = Run(inputs.Args(false), backend);
        const double tolerance = layout.dtype == DType::kF32 ? 1e-4 : Tolerance(layout.dtype);
        CHECK(RelativeError(out, expected) < tolerance);
        const std::vector<float> row(out.begin() + static_cast<int64_t>(at),
                                     out.begin() + static_cast<int64_t>(at) + dim);
        const std::vector<double> of_key(problem.Value(130, 1), problem.Value(130, 1) + dim);
        CHECK(RelativeError(row, of_key) < tolerance);
      }
    });
  }
}

TEST_CASE("attention of many sequences of different lengths equals the reference", "[attention]") {
  for (size_t sequences : {size_t{64}, size_t{65}}) {
    for (bool causal : {false, true}) {
      RandomData random(static_cast<uint32_t>(sequences));
      Shape shape{.heads = Pick<int64_t>(2, 1),
                  .head_dim = 16,
                  .q_lens = {},
                  .kv_lens = {},
                  .positions = {},
                  .causal = causal,
                  .bias = BiasKind::kTable};
      for (size_t s = 0; s < sequences; ++s) {
        shape.q_lens.push_back(
            static_cast<int32_t>(random.Below(s % 7 == 0 ? Pick<int64_t>(400, 250) : int64_t{40})));
        shape.kv_lens.push_back(shape.q_lens.back() + static_cast<int32_t>(random.Below(200)));
      }
      CheckShape(shape, causal ? 61 : 63);
    }
  }
}

TEST_CASE("cross-attention of several beams equals the reference", "[attention]") {
  CheckShape({.heads = 3,
              .head_dim = 64,
              .q_lens = {4, 1, 8, 64, 3},
              .kv_lens = {128, 5, 77, 200, 1},
              .positions = {},
              .causal = false,
              .scale = 0.5f},
             7);
}

TEST_CASE("attention of one query and many keys equals the reference", "[attention]") {
  CheckShape({.heads = 2,
              .head_dim = 128,
              .q_lens = {1, 1, 16, 1, 1},
              .kv_lens = Pick({2500, 1, 129, 0, 640}, {700, 1, 129, 0, 66}),
              .positions = {},
              .causal = true,
              .bias = BiasKind::kTable,
              .scale = 0.1f},
             3);
}

TEST_CASE("a query without visible keys gives zeros", "[attention]") {
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      const Problem problem({.heads = 2,
                             .head_dim = 16,
                             .q_lens = {20, 3},
                             .kv_lens = {5, 5},
                             .positions = {-15, -3},
                             .causal = true,
                             .gap = 8},
                            5, dtype);
      const Inputs inputs(problem, nullptr, backend);
      const std::vector<float> out = Run(inputs.Args(false), backend);
      CHECK(WorstError(out, Reference(problem)) < (dtype == DType::kF32 ? 2e-6 : 0.02));
      for (int64_t row : {0, 14, 20, 22}) {
        for (int64_t i = 0; i < 32; ++i) REQUIRE(out[static_cast<size_t>(row * 32 + i)] == 0.0f);
      }
      CHECK(out[15 * 32] != 0.0f);
    }
  });
}

// Returns the arguments of an Attention call for only a part of a problem: the queries [begin, end)
// of sequence s, with all keys of that sequence.
AttentionArgs Slice(const Inputs& inputs, bool from_cache, size_t s, int64_t begin, int64_t end,
                    TestBackend& backend) {
  const Problem& p = inputs.problem;
  AttentionArgs args = inputs.Args(from_cache);
  const std::span<const int32_t> numbers = backend.Plan(std::vector<int32_t>{
      0, static_cast<int32_t>(end - begin), static_cast<int32_t>(p.Position(s) + begin),
      p.kv_offsets[s], p.kv_offsets[s + 1], p.shape.kv_lens[s]});
  args.q = args.q.Rows(p.q_offsets[s] + begin, p.q_offsets[s] + end);
  args.q_offsets = numbers.subspan(0, 2);
  args.q_positions = numbers.subspan(2, 1);
  if (from_cache) {
    args.slots += static_cast<int64_t>(s) * inputs.slots_stride;
    args.kv_lens = numbers.subspan(5, 1);
  } else {
    args.kv_offsets = numbers.subspan(3, 2);
  }
  return args;
}

TEST_CASE(
    "an attention row has the same bits alone, in any slice and batch, with any number of threads",
    "[attention]") {
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    const Problem problem({.heads = 2,
                           .head_dim = kind == BiasKind::kAlibi ? 24 : 64,
                           .q_lens = Pick({150, 3, 64}, {70, 3, 8}),
                           .kv_lens = Pick({150, 91, 300}, {70, 91, 20}),
                           .positions = {},
                           .causal = kind != BiasKind::kNone,
                           .bias = kind,
                           .asymmetric = true,
                           .scale = 0.3f},
                          21);
    const CachedKeys cached(problem, 22);
    ForEachBackend([&](TestBackend& backend) {
      const Inputs inputs(problem, &cached, backend);
      const std::vector<float> whole = Run(inputs.Args(false), backend);
      if (backend.stream().backend() == Backend::kCpu) {
        for (int threads : {1, 2, 4}) {
          ThreadPool pool(threads);
          Stream stream(&pool);
          CHECK(SameBits(whole, Run(inputs.Args(false), backend, stream)));
        }
      }
      for (size_t s = 0; s < 3; ++s) {
        for (int64_t step : Pick({1, 2, 7, 8, 9, 31, 64}, {8, 64})) {
          for (int64_t begin = 0; begin < problem.shape.q_lens[s]; begin += step) {
            const int64_t end = std::min<int64_t>(begin + step, problem.shape.q_lens[s]);
            const std::vector<float> part =
                Run(Slice(inputs, step % 2 == 0, s, begin, end, backend), backend);
            const float* expected = whole.data() + (problem.q_offsets[s] + begin) * problem.width();
            REQUIRE(std::memcmp(part.data(), expected, part.size() * sizeof(float)) == 0);
          }
        }
      }
    });
  }
}

TEST_CASE("attention output may alias the queries", "[attention]") {
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      const Problem problem({.heads = 3,
                             .head_dim = 40,
                             .q_lens = {70, 2},
                             .kv_lens = {70, 90},
                             .positions = {},
                             .causal = true,
                             .bias = BiasKind::kTable,
                             .gap = 8},
                            31, dtype);
      const Inputs inputs(problem, nullptr, backend);
      AttentionArgs args = inputs.Args(false);
      const std::vector<float> expected = Run(args, backend);
      args.out = args.q;
      args.scratch = backend.Scratch(ScratchBytes(args, backend.stream()));
      Attention(args, backend.stream());
      CHECK(SameBits(backend.Floats(args.q), expected));
    }
  });
}

TEST_CASE("attention equals the reference for very different and for equal scores", "[attention]") {
  for (float factor : {0.0f, 100.0f, 1e10f}) {
    Problem problem({.heads = 1,
                     .head_dim = 8,
                     .q_lens = {40, 2},
                     .kv_lens = {100, 100},
                     .positions = {},
                     .causal = false},
                    41);
    for (float& q : problem.q_data) q *= factor;
    const double tolerance = factor == 100.0f ? 2e-3 : 4e-6;  // scores up to 300 have error 3e-5
    ForEachBackend([&](TestBackend& backend) {
      const Inputs inputs(problem, nullptr, backend);
      CHECK(WorstError(Run(inputs.Args(false), backend), Reference(problem)) < tolerance);
    });
  }
}

// Scores that increase along the keys, by small and by large steps, make an online softmax rescale
// its partial sums.
TEST_CASE("attention equals the reference for scores that increase along the keys", "[attention]") {
  const std::function<float(int64_t)> growths[] = {
      [](int64_t key) { return static_cast<float>(key) / 60.0f; },
      [](int64_t key) { return key < 300 ? 0.01f : 60.0f; },
      [](int64_t key) { return key % 128 == 127 ? static_cast<float>(key) / 8.0f : 0.5f; }};
  uint32_t seed = 71;
  for (const auto& growth : growths) {
    for (int64_t dim : {64, 128}) {
      ForEachBackend([&](TestBackend& backend) {
        for (DType dtype : backend.float_types()) {
          Problem problem({.heads = Pick<int64_t>(2, 1),
                           .head_dim = dim,
                           .q_lens = Pick({130, 20}, {70, 20}),
                           .kv_lens = Pick({600, 400}, {400, 300}),
                           .positions = {},
                           .bias = dim == 64 ? BiasKind::kTable : BiasKind::kAlibi,
                           .scale = 0.125f,
                           .gap = 8},
                          seed += 2, dtype);
          for (size_t s = 0; s < 2; ++s) {
            for (int64_t t = 0; t < problem.shape.kv_lens[s]; ++t) {
              float* key = problem.kv_data.data() + (problem.kv_offsets[s] + t) * problem.kv_stride;
              for (int64_t i = 0; i < problem.width(); ++i) key[i] *= growth(t);
            }
          }
          problem.kv_data = RoundedTo(dtype, problem.kv_data);
          const Inputs inputs(problem, nullptr, backend);
          const std::vector<float> out = Run(inputs.Args(false), backend);
          const double tolerance = dtype == DType::kF32 ? 1e-3 : Tolerance(dtype);
          CHECK(RelativeError(out, Reference(problem)) < tolerance);
        }
      });
    }
  }
}

// Overwrites the last q_len keys and values of each sequence in the cache with NaN, as if they had
// not been computed yet. Returns the slots with which StoreKv adds them again: one per packed row
// of keys, -1 for rows that remained in the cache.
std::vector<int32_t> TakeOwnKeys(const Problem& problem, CachedKeys& cached) {
  const KvCache& cache = cached.cache;
  std::vector<int32_t> missing(static_cast<size_t>(problem.kv_offsets.back()), -1);
  for (size_t s = 0; s < problem.shape.q_lens.size(); ++s) {
    const int32_t kv_len = problem.shape.kv_lens[s];
    for (int32_t t = kv_len - problem.shape.q_lens[s]; t < kv_len; ++t) {
      const int32_t slot = cached.slots[s * static_cast<size_t>(cached.stride) + t];
      missing[static_cast<size_t>(problem.kv_offsets[s] + t)] = slot;
      for (int64_t chunk = 0; chunk < cache.layers * 2 * cache.heads; ++chunk) {
        std::fill_n(cached.values.data() + cache.SlotOffset(slot) +
                        chunk * cache.page_size * cache.head_dim,
                    cache.head_dim, NAN);
      }
    }
  }
  return missing;
}

// Returns the dtypes of activations, each with the types of a cache that accepts it.
std::vector<std::pair<DType, DType>> CacheTypes(const TestBackend& backend) {
  std::vector<std::pair<DType, DType>> types;
  for (DType dtype : backend.float_types()) {
    types.emplace_back(dtype, dtype);
    if (dtype != DType::kF32) types.emplace_back(dtype, DType::kF8);
  }
  return types;
}

TEST_CASE("attention reads keys that the previous op has written", "[attention]") {
  const std::vector<Shape> shapes = {
      {.heads = 12, .head_dim = 64, .q_lens = {1, 4, 16, 0, 3}, .kv_lens = {1, 200, 77, 30, 40}},
      {.heads = 3, .head_dim = 128, .q_lens = {1, 1, 5}, .kv_lens = {17, 16, Pick(1500, 300)}},
      {.heads = 2, .head_dim = 64, .q_lens = {1}, .kv_lens = {Pick(5000, 700)}}};
  for (Shape shape : shapes) {
    shape.causal = true;
    shape.gap = 8;
    shape.scale = 0.125f;
    ForEachBackend([&](TestBackend& backend) {
      for (const auto& [dtype, cache_type] : CacheTypes(backend)) {
        Problem problem(shape, 51, dtype);
        problem.kv_data = RoundedTo(cache_type, problem.kv_data);
        const std::vector<double> expected = Reference(problem);
        CachedKeys cached(problem, 52, cache_type);
        const std::span<const int32_t> missing = backend.Plan(TakeOwnKeys(problem, cached));
        for (int repeat = 0; repeat < Pick(4, 2); ++repeat) {
          const Inputs inputs(problem, &cached, backend);
          AttentionArgs args = inputs.Args(true);
          args.out = backend.Poisoned(dtype, {args.q.dim[0], shape.heads, shape.head_dim});
          args.scratch = backend.Scratch(ScratchBytes(args, backend.stream()));
          args.fresh = FreshKeys::kOwn;
          StoreKv(
              {.k = inputs.k, .v = inputs.v, .cache = &inputs.cache, .layer = 1, .slots = missing},
              backend.stream());
          Attention(args, backend.stream());
          const std::vector<float> own = backend.Floats(args.out);
          args.fresh = repeat % 2 == 0 ? FreshKeys::kNone : FreshKeys::kAny;
          Attention(args, backend.stream());
          CHECK(SameBits(backend.Floats(args.out), own));
          if (dtype == DType::kF32) {
            CHECK(WorstError(own, expected) < 4e-6);
          } else {
            CHECK(RelativeError(own, expected) < Tolerance(dtype));
          }
        }
      }
    });
  }
}

TEST_CASE("attention without keys gives zeros, without sequences nothing", "[attention]") {
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      const Problem none({.heads = 2, .head_dim = 8, .q_lens = {}, .kv_lens = {}, .positions = {}},
                         1, dtype);
      CHECK(Run(Inputs(none, nullptr, backend).Args(false), backend).empty());
      const Problem no_keys(
          {.heads = 2, .head_dim = 8, .q_lens = {2, 40}, .kv_lens = {0, 0}, .positions = {}}, 1,
          dtype);
      for (float x : Run(Inputs(no_keys, nullptr, backend).Args(false), backend))
        REQUIRE(x == 0.0f);
    }
  });
}

}  // namespace
}  // namespace quintet::attention_test
