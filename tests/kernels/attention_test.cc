#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "catch2/catch.hpp"
#include "tests/kernels/random_data.h"

namespace quintet {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t heads, head_dim;
  std::vector<int32_t> q_lens, kv_lens;
  std::vector<int32_t> positions;  // or empty
  bool causal = false;
  BiasKind bias = BiasKind::kNone;
  bool asymmetric = false;
  float scale = 1.0f;
};

std::vector<int32_t> Offsets(const std::vector<int32_t>& lens) {
  std::vector<int32_t> offsets(lens.size() + 1, 0);
  std::partial_sum(lens.begin(), lens.end(), offsets.begin() + 1);
  return offsets;
}

// Inputs of one call: q, k and v side by side in one packed matrix's rows, so that strides matter,
// and a bias of the asked kind.
class Problem {
 public:
  Problem(const Shape& shape, uint32_t seed)
      : shape(shape), q_offsets(Offsets(shape.q_lens)), kv_offsets(Offsets(shape.kv_lens)) {
    RandomData random(seed);
    const int64_t width = shape.heads * shape.head_dim;
    q_stride = 3 * width + 5;
    kv_stride = 2 * width + 3;
    q_data = random.Values(q_offsets.back() * q_stride + width, 2.0f);
    kv_data = random.Values(kv_offsets.back() * kv_stride + 2 * width, 1.5f);
    bias.kind = shape.bias;
    bias.heads = shape.heads;
    FillBias(random);
  }

  Tensor Q() const { return View(q_data.data(), q_offsets.back(), q_stride); }
  Tensor K() const { return View(kv_data.data(), kv_offsets.back(), kv_stride); }
  Tensor V() const {
    return View(kv_data.data() + shape.heads * shape.head_dim, kv_offsets.back(), kv_stride);
  }
  int64_t Position(size_t s) const {
    return shape.positions.empty() ? shape.kv_lens[s] - shape.q_lens[s] : shape.positions[s];
  }

  // bias and mask of (head, query position, key position), in double.
  double Bias(int64_t h, int64_t p, int64_t t) const {
    if (shape.causal && t > p) return -kInfinity;
    const double delta = static_cast<double>(t - p);
    switch (bias.kind) {
      case BiasKind::kNone:
        return 0.0;
      case BiasKind::kTable:
        return table[static_cast<size_t>(h * (2 * bias.saturation + 1) + bias.saturation +
                                         std::clamp(t - p, -bias.saturation, bias.saturation))];
      case BiasKind::kAlibi:
        if (bias.asymmetric && (h < shape.heads / 2 ? t > p : t < p)) return -kInfinity;
        return -static_cast<double>(table[static_cast<size_t>(h)]) * std::abs(delta);
      case BiasKind::kFire:
        return FireBias(h, p, t);
    }
    return 0.0;
  }

  Shape shape;
  std::vector<int32_t> q_offsets, kv_offsets;
  int64_t q_stride, kv_stride;
  std::vector<float> q_data, kv_data;
  PositionBias bias;
  std::vector<float> table, knots, offsets;

 private:
  Tensor View(const float* data, int64_t rows, int64_t stride) const {
    Tensor t = Tensor::F32(data, {rows, shape.heads, shape.head_dim});
    t.stride[0] = stride;
    return t;
  }

  void FillBias(RandomData& random) {
    const int64_t heads = shape.heads;
    if (bias.kind == BiasKind::kTable) {
      bias.saturation = 37;
      table = random.Values(heads * (2 * bias.saturation + 1), 2.0f);
      bias.table = Tensor::F32(table.data(), {heads, 2 * bias.saturation + 1});
    } else if (bias.kind == BiasKind::kAlibi) {
      for (int64_t h = 0; h < heads; ++h) table.push_back(std::exp2(-static_cast<float>(h + 1)));
      bias.slopes = Tensor::F32(table.data(), {heads});
      bias.asymmetric = shape.asymmetric;
    } else if (bias.kind == BiasKind::kFire) {
      bias.fire_c = 0.1f;
      bias.fire_threshold = 50.0f;
      for (int i = 0; i < 9; ++i) knots.push_back(0.22f * static_cast<float>(i) - 0.9f);
      table = random.Values(heads * 10);
      offsets = random.Values(heads * 10);
      bias.knots = Tensor::F32(knots.data(), {9});
      for (int64_t h = 0; h < heads; ++h) {  // continuous, as a network's function is
        for (size_t s = 1; s < 10; ++s) {
          const size_t i = static_cast<size_t>(h) * 10 + s;
          offsets[i] = offsets[i - 1] + (table[i - 1] - table[i]) * knots[s - 1];
        }
      }
      bias.segment_slope = Tensor::F32(table.data(), {heads, 10});
      bias.segment_offset = Tensor::F32(offsets.data(), {heads, 10});
    }
  }

  double FireBias(int64_t h, int64_t p, int64_t t) const {
    const double c = bias.fire_c, delta = static_cast<double>(p - t);
    const double reach = std::max(static_cast<double>(p), double{bias.fire_threshold});
    const double sign = delta > 0 ? 1 : delta < 0 ? -1 : 0;
    const double f =
        sign * std::log(std::abs(c * delta) + 1) / (std::log(std::abs(c * reach) + 1) + 1e-6);
    size_t s = 0;
    while (s < knots.size() && knots[s] < f) ++s;
    const size_t i = static_cast<size_t>(h) * 10 + s;
    return double{table[i]} * f + double{offsets[i]};
  }
};

// The answer in double: [q_total, heads, head_dim].
std::vector<double> Reference(const Problem& p) {
  const int64_t heads = p.shape.heads, dim = p.shape.head_dim;
  std::vector<double> out(static_cast<size_t>(p.q_offsets.back() * heads * dim), 0.0);
  const Tensor q = p.Q(), k = p.K(), v = p.V();
  for (size_t s = 0; s < p.shape.q_lens.size(); ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < p.shape.q_lens[s]; ++i) {
        const float* qr = q.f32() + (p.q_offsets[s] + i) * q.stride[0] + h * dim;
        std::vector<double> score(static_cast<size_t>(p.shape.kv_lens[s]));
        double max = -kInfinity, sum = 0;
        for (size_t t = 0; t < score.size(); ++t) {
          const int64_t row = p.kv_offsets[s] + static_cast<int64_t>(t);
          const float* kr = k.f32() + row * k.stride[0] + h * dim;
          for (int64_t c = 0; c < dim; ++c) score[t] += double{qr[c]} * double{kr[c]};
          score[t] = score[t] * double{p.shape.scale} +
                     p.Bias(h, p.Position(s) + i, static_cast<int64_t>(t));
          max = std::max(max, score[t]);
        }
        if (max == -kInfinity) continue;
        double* o = out.data() + ((p.q_offsets[s] + i) * heads + h) * dim;
        for (double x : score) sum += std::exp(x - max);
        for (size_t t = 0; t < score.size(); ++t) {
          const int64_t row = p.kv_offsets[s] + static_cast<int64_t>(t);
          const float* vr = v.f32() + row * v.stride[0] + h * dim;
          for (int64_t c = 0; c < dim; ++c) o[c] += std::exp(score[t] - max) / sum * double{vr[c]};
        }
      }
    }
  }
  return out;
}

// The problem's keys and values in a cache, on slots in random order.
struct CachedKeys {
  CachedKeys(const Problem& p, uint32_t seed) {
    cache.layers = 3;
    cache.heads = p.shape.heads;
    cache.head_dim = p.shape.head_dim;
    cache.page_size = 16;
    cache.pages = p.kv_offsets.back() / cache.page_size + 2;
    data.assign(static_cast<size_t>(cache.pages * cache.page_elements()), NAN);
    cache.data = data.data();
    std::vector<int32_t> order(static_cast<size_t>(cache.pages * cache.page_size));
    std::iota(order.begin(), order.end(), 0);
    RandomData random(seed);
    // Runs of consecutive slots and jumps, both.
    for (size_t i = 0; i + 1 < order.size(); i += 1 + static_cast<size_t>(random.Below(7))) {
      std::swap(order[i],
                order[static_cast<size_t>(random.Below(static_cast<int64_t>(order.size())))]);
    }
    stride = *std::max_element(p.shape.kv_lens.begin(), p.shape.kv_lens.end()) + 3;
    slots.assign(p.shape.kv_lens.size() * static_cast<size_t>(stride), -1);
    std::vector<int32_t> of_rows(order.begin(), order.begin() + p.kv_offsets.back());
    for (size_t s = 0; s < p.shape.kv_lens.size(); ++s) {
      std::copy(of_rows.begin() + p.kv_offsets[s], of_rows.begin() + p.kv_offsets[s + 1],
                slots.begin() + static_cast<int64_t>(s) * stride);
    }
    ThreadPool pool(1);
    Stream stream(&pool);
    StoreKv({.k = p.K(), .v = p.V(), .cache = &cache, .layer = 1, .slots = of_rows}, stream);
  }

  KvCache cache;
  std::vector<float> data;
  std::vector<int32_t> slots;
  int64_t stride;
};

AttentionArgs ArgsOf(const Problem& p, const CachedKeys* cached) {
  AttentionArgs args;
  args.q = p.Q();
  args.q_offsets = p.q_offsets;
  if (cached == nullptr) {
    args.k = p.K();
    args.v = p.V();
    args.kv_offsets = p.kv_offsets;
  } else {
    args.cache = &cached->cache;
    args.layer = 1;
    args.slots = cached->slots.data();
    args.slots_stride = cached->stride;
    args.kv_lens = p.shape.kv_lens;
  }
  args.q_positions = p.shape.positions;
  args.causal = p.shape.causal;
  args.bias = &p.bias;
  args.scale = p.shape.scale;
  return args;
}

// Runs on fresh output (filled with NaN) and scratch; returns [q_total, heads, head_dim].
std::vector<float> Run(AttentionArgs args, int threads = 1) {
  ThreadPool pool(threads);
  Stream stream(&pool);
  const int64_t heads = args.q.dim[1], dim = args.q.dim[2];
  std::vector<float> out(static_cast<size_t>(args.q.dim[0] * heads * dim), NAN);
  std::vector<int8_t> scratch(static_cast<size_t>(AttentionScratchBytes(heads, dim, stream)), 0x7f);
  args.out = Tensor::F32(out.data(), {args.q.dim[0], heads, dim});
  args.scratch = Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
  Attention(args, stream);
  return out;
}

double WorstError(const std::vector<float>& got, const std::vector<double>& expected) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    worst = error <= worst ? worst : error;  // NaN counts as worse
  }
  return worst;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void CheckShape(const Shape& shape, uint32_t seed) {
  const Problem problem(shape, seed);
  const CachedKeys cached(problem, seed + 1);
  const std::vector<double> expected = Reference(problem);
  ForEachIsa([&] {
    const std::vector<float> packed = Run(ArgsOf(problem, nullptr));
    CHECK(WorstError(packed, expected) < 4e-6);
    CHECK(SameBits(packed, Run(ArgsOf(problem, &cached), 2)));
  });
}

const std::vector<int32_t> kLengths = {1, 7, 63, 64, 65, 127, 129};

TEST_CASE("attention equals the sum in double for every bias", "[attention]") {
  uint32_t seed = 1;
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    for (bool causal : {false, true}) {
      for (bool asymmetric : {false, true}) {
        if (asymmetric && kind != BiasKind::kAlibi) continue;
        CheckShape({.heads = 4,
                    .head_dim = 24,
                    .q_lens = kLengths,
                    .kv_lens = kLengths,
                    .positions = {},
                    .causal = causal,
                    .bias = kind,
                    .asymmetric = asymmetric},
                   seed += 2);
      }
    }
  }
}

TEST_CASE("attention of every head size", "[attention]") {
  for (int64_t dim : {1, 3, 16, 24, 32, 64, 80, 96, 128, 251, 256}) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    CheckShape({.heads = 2,
                .head_dim = dim,
                .q_lens = {5, 0, 33, 100, 9},
                .kv_lens = {70, 3, 0, 130, 9},
                .positions = {65, 0, 0, 30, 0},
                .causal = dim % 2 == 0,
                .bias = BiasKind::kTable,
                .scale = scale},
               static_cast<uint32_t>(dim));
  }
}

TEST_CASE("a thousand keys", "[attention]") {
  for (BiasKind kind : {BiasKind::kTable, BiasKind::kFire}) {
    CheckShape({.heads = 2,
                .head_dim = 64,
                .q_lens = {1000, 1, 4},
                .kv_lens = {1000, 1000, 777},
                .positions = {},
                .causal = true,
                .bias = kind,
                .scale = 0.125f},
               99);
  }
}

TEST_CASE("cross-attention of several beams", "[attention]") {
  CheckShape({.heads = 3,
              .head_dim = 64,
              .q_lens = {4, 1, 8, 64, 3},
              .kv_lens = {128, 5, 77, 200, 1},
              .positions = {},
              .causal = false,
              .scale = 0.5f},
             7);
}

TEST_CASE("a query before the first key sees nothing and gives zeros", "[attention]") {
  const Problem problem({.heads = 2,
                         .head_dim = 16,
                         .q_lens = {20, 3},
                         .kv_lens = {5, 5},
                         .positions = {-15, -3},
                         .causal = true},
                        5);
  ForEachIsa([&] {
    const std::vector<float> out = Run(ArgsOf(problem, nullptr));
    CHECK(WorstError(out, Reference(problem)) < 2e-6);
    for (int64_t row : {0, 14, 20, 22}) {
      for (int64_t i = 0; i < 32; ++i) REQUIRE(out[static_cast<size_t>(row * 32 + i)] == 0.0f);
    }
    CHECK(out[15 * 32] != 0.0f);
  });
}

// Sequence s of a problem, rows [begin, end) of it only.
AttentionArgs Slice(const Problem& p, const CachedKeys* cached, size_t s, int64_t begin,
                    int64_t end, std::array<int32_t, 5>* numbers) {
  AttentionArgs args = ArgsOf(p, cached);
  *numbers = {0, static_cast<int32_t>(end - begin), static_cast<int32_t>(p.Position(s) + begin),
              p.kv_offsets[s], p.kv_offsets[s + 1]};
  args.q = args.q.Rows(p.q_offsets[s] + begin, p.q_offsets[s] + end);
  args.q_offsets = absl::MakeSpan(numbers->data(), 2);
  args.q_positions = absl::MakeSpan(numbers->data() + 2, 1);
  args.kv_offsets = absl::MakeSpan(numbers->data() + 3, 2);
  if (cached != nullptr) {
    args.slots += static_cast<int64_t>(s) * cached->stride;
    args.kv_lens = args.kv_lens.subspan(s, 1);
  }
  return args;
}

TEST_CASE("a row has the same bits alone, in any slice, batch and number of threads",
          "[attention]") {
  for (BiasKind kind : {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire}) {
    const bool causal = kind != BiasKind::kNone;
    const Problem problem({.heads = 2,
                           .head_dim = kind == BiasKind::kAlibi ? 24 : 64,
                           .q_lens = {150, 3, 64},
                           .kv_lens = {150, 91, 300},
                           .positions = {},
                           .causal = causal,
                           .bias = kind,
                           .asymmetric = true,
                           .scale = 0.3f},
                          21);
    const CachedKeys cached(problem, 22);
    const int64_t row_values = problem.shape.heads * problem.shape.head_dim;
    ForEachIsa([&] {
      const std::vector<float> whole = Run(ArgsOf(problem, nullptr));
      for (int threads : {2, 3, 4}) CHECK(SameBits(whole, Run(ArgsOf(problem, nullptr), threads)));
      for (size_t s = 0; s < 3; ++s) {
        for (int64_t step : {1, 2, 7, 8, 9, 31, 64}) {
          for (int64_t begin = 0; begin < problem.shape.q_lens[s]; begin += step) {
            const int64_t end = std::min<int64_t>(begin + step, problem.shape.q_lens[s]);
            std::array<int32_t, 5> numbers;
            const std::vector<float> part =
                Run(Slice(problem, step % 2 == 0 ? &cached : nullptr, s, begin, end, &numbers));
            const float* expected = whole.data() + (problem.q_offsets[s] + begin) * row_values;
            REQUIRE(std::memcmp(part.data(), expected, part.size() * sizeof(float)) == 0);
          }
        }
      }
    });
  }
}

TEST_CASE("attention may write over its queries", "[attention]") {
  Problem problem({.heads = 3,
                   .head_dim = 40,
                   .q_lens = {70, 2},
                   .kv_lens = {70, 90},
                   .positions = {},
                   .causal = true,
                   .bias = BiasKind::kTable},
                  31);
  const std::vector<float> expected = Run(ArgsOf(problem, nullptr));
  ThreadPool pool(2);
  Stream stream(&pool);
  std::vector<int8_t> scratch(static_cast<size_t>(AttentionScratchBytes(3, 40, stream)));
  AttentionArgs args = ArgsOf(problem, nullptr);
  args.out = args.q;
  args.scratch = Tensor::Dense(scratch.data(), DType::kI8, {static_cast<int64_t>(scratch.size())});
  Attention(args, stream);
  for (int64_t r = 0; r < 72; ++r) {
    REQUIRE(std::memcmp(problem.q_data.data() + r * problem.q_stride, expected.data() + r * 120,
                        120 * sizeof(float)) == 0);
  }
}

TEST_CASE("scores far apart and equal scores", "[attention]") {
  Problem problem({.heads = 1,
                   .head_dim = 8,
                   .q_lens = {40, 2},
                   .kv_lens = {100, 100},
                   .positions = {},
                   .causal = false},
                  41);
  for (float factor : {0.0f, 100.0f, 1e10f}) {
    Problem scaled = problem;
    for (float& q : scaled.q_data) q *= factor;
    ForEachIsa([&] {
      const std::vector<float> out = Run(ArgsOf(scaled, nullptr));
      const double tolerance = factor == 100.0f ? 2e-3 : 4e-6;  // a score of 300 is known to 3e-5
      CHECK(WorstError(out, Reference(scaled)) < tolerance);
    });
  }
}

TEST_CASE("no sequences, no keys", "[attention]") {
  const Problem none({.heads = 2, .head_dim = 8, .q_lens = {}, .kv_lens = {}, .positions = {}}, 1);
  CHECK(Run(ArgsOf(none, nullptr)).empty());
  const Problem no_keys(
      {.heads = 2, .head_dim = 8, .q_lens = {2, 40}, .kv_lens = {0, 0}, .positions = {}}, 1);
  for (float x : Run(ArgsOf(no_keys, nullptr))) REQUIRE(x == 0.0f);
}

}  // namespace
}  // namespace quintet
