#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/mask.h"
#include "tests/catch.h"
#include "tests/kernels/attention/attention_problem.h"

namespace quintet::attention_test {
namespace {

// LongT5's encoder attention: queries see the keys at distances of at most `radius` (0: all), and
// the global keys of their sequence. The last number of global keys of a sequence is its kv_len /
// block, as in the model, unless `counts` says otherwise.
struct LocalShape {
  Shape own;
  int64_t radius = 0;
  int64_t block = 0;            // 0: no global keys
  std::vector<int32_t> counts;  // or empty
};

std::vector<int32_t> CountsOf(const LocalShape& shape) {
  if (!shape.counts.empty()) return shape.counts;
  std::vector<int32_t> counts;
  for (const int32_t n : shape.own.kv_lens) {
    counts.push_back(shape.block == 0 ? 0 : static_cast<int32_t>(n / shape.block));
  }
  return counts;
}

// The keys and values of the own tokens in `own`, those of the global tokens in `global`.
struct LocalProblem {
  LocalProblem(const LocalShape& shape, uint32_t seed, DType dtype)
      : shape(shape),
        own(shape.own, seed, dtype),
        global({.heads = shape.own.heads,
                .head_dim = shape.own.head_dim,
                .q_lens = std::vector<int32_t>(shape.own.q_lens.size()),
                .kv_lens = CountsOf(shape),
                .positions = {},
                .bias = BiasKind::kTable,
                .gap = shape.own.gap,
                .saturation = 5},
               seed + 1000, dtype) {}

  bool Hidden(int64_t position, int64_t key) const {
    return shape.radius > 0 && std::abs(position - key) > shape.radius;
  }

  LocalShape shape;
  Problem own, global;
};

// Computes attention for the problem in double: [q_total, heads, head_dim].
std::vector<double> LocalReference(const LocalProblem& p) {
  const int64_t heads = p.own.shape.heads, dim = p.own.shape.head_dim;
  std::vector<double> out(static_cast<size_t>(p.own.q_offsets.back() * heads * dim), 0.0);
  for (size_t s = 0; s < p.own.shape.q_lens.size(); ++s) {
    const int64_t count = p.global.shape.kv_lens[s];
    for (int64_t i = 0; i < p.own.shape.q_lens[s]; ++i) {
      const int64_t position = p.own.Position(s) + i;
      for (int64_t h = 0; h < heads; ++h) {
        const float* q = p.own.Query(p.own.q_offsets[s] + i, h);
        std::vector<double> scores;
        std::vector<const float*> values;
        const auto add = [&](const Problem& of, int64_t row, double bias) {
          double score = 0;
          for (int64_t c = 0; c < dim; ++c) score += double{q[c]} * double{of.Key(row, h)[c]};
          scores.push_back(score * double{p.own.shape.scale} + bias);
          values.push_back(of.Value(row, h));
        };
        for (int64_t t = 0; t < p.own.shape.kv_lens[s]; ++t) {
          if (p.Hidden(position, t)) continue;
          add(p.own, p.own.kv_offsets[s] + t, p.own.Bias(h, position, t));
        }
        for (int64_t g = 0; g < count; ++g) {
          const int64_t block = std::min(position / p.shape.block, count - 1);
          add(p.global, p.global.kv_offsets[s] + g, p.global.Bias(h, block, g));
        }
        if (scores.empty()) continue;
        const double max = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - max);
        double* o = out.data() + ((p.own.q_offsets[s] + i) * heads + h) * dim;
        for (size_t k = 0; k < scores.size(); ++k) {
          for (int64_t c = 0; c < dim; ++c) o[c] += scores[k] / sum * double{values[k][c]};
        }
      }
    }
  }
  return out;
}

// The problem's arguments of Attention, in memory of a backend.
class LocalInputs {
 public:
  LocalInputs(const LocalProblem& p, TestBackend& backend)
      : problem_(p), own_(p.own, nullptr, backend), global_(p.global, nullptr, backend) {
    std::vector<int32_t> lower, upper;
    for (const int32_t n : p.own.shape.kv_lens) {
      for (int32_t t = 0; t < n; ++t) {
        lower.push_back(t + static_cast<int32_t>(p.shape.radius) + 1);
        upper.push_back(t - static_cast<int32_t>(p.shape.radius));
      }
    }
    std::vector<MaskTile> tiles(static_cast<size_t>(MaskTiles(p.own.kv_offsets)));
    SummariseMask({lower.data(), nullptr, nullptr, upper.data()}, p.own.kv_offsets, tiles);
    mask_.lower_begin = backend.Plan(lower);
    mask_.upper_end = backend.Plan(upper);
    mask_.tiles = backend.Plan(tiles);
    mask_.reach = p.shape.radius;
    globals_ = {.k = global_.k,
                .v = global_.v,
                .offsets = global_.kv_offsets,
                .block = p.shape.block,
                .bias = &global_.bias};
  }

  AttentionArgs Args() const {
    AttentionArgs args = own_.Args(false);
    if (problem_.shape.radius > 0) args.mask = &mask_;
    if (problem_.shape.block > 0) args.globals = &globals_;
    return args;
  }
  const ColumnMask& mask() const { return mask_; }
  const GlobalKeys& globals() const { return globals_; }

 private:
  const LocalProblem& problem_;
  const Inputs own_, global_;
  ColumnMask mask_;
  GlobalKeys globals_;
};

void CheckLocal(LocalShape shape, uint32_t seed) {
  INFO("head_dim " << shape.own.head_dim << " radius " << shape.radius << " block " << shape.block);
  ForEachBackend([&](TestBackend& backend) {
    for (const Layout& layout : Layouts(backend, seed)) {
      shape.own.gap = layout.gap;
      const LocalProblem problem(shape, seed, layout.dtype);
      const LocalInputs inputs(problem, backend);
      const std::vector<double> expected = LocalReference(problem);
      const std::vector<float> out = Run(inputs.Args(), backend);
      if (layout.dtype == DType::kF32) {
        CHECK(WorstError(out, expected) < 4e-6);
      } else {
        CHECK(RelativeError(out, expected) < Tolerance(layout.dtype));
      }
    }
  });
}

// Lengths around blocks of 16 tokens, around the kernels' tiles of 64 keys, and inputs of fewer
// tokens than a block, which have no global keys.
TEST_CASE("attention with a window and global keys equals the reference in double", "[attention]") {
  const std::vector<int32_t> lens =
      Pick({1, 15, 16, 17, 31, 32, 129, 300, 64, 7, 1100}, {1, 15, 17, 200});
  uint32_t seed = 300;
  for (int64_t dim : Pick<int64_t>({8, 24, 64, 128}, {64, 128})) {
    for (int64_t radius : Pick<int64_t>({1, 5, 63, 127}, {5, 127})) {
      CheckLocal({{.heads = Pick<int64_t>(3, 1),
                   .head_dim = dim,
                   .q_lens = lens,
                   .kv_lens = lens,
                   .positions = {},
                   .bias = BiasKind::kTable,
                   .scale = dim == 24 ? 1.0f : 0.2f},
                  radius,
                  16},
                 seed += 2);
    }
  }
}

TEST_CASE("attention equals the reference for every size of the blocks of global keys",
          "[attention]") {
  uint32_t seed = 400;
  for (int64_t block : Pick<int64_t>({1, 2, 3, 5, 64, 100, 1000}, {1, 3, 100})) {
    const std::vector<int32_t> lens = Pick({250, 1, 99, 100, 101}, {130, 1, 99});
    CheckLocal({{.heads = 2,
                 .head_dim = block % 2 == 0 ? 64 : 40,
                 .q_lens = lens,
                 .kv_lens = lens,
                 .positions = {},
                 .bias = BiasKind::kTable,
                 .scale = 0.3f},
                block % 3 == 0 ? 0 : 20,
                block},
               seed += 2);
  }
}

TEST_CASE("attention with global keys equals the reference for parts of the queries and any count",
          "[attention]") {
  CheckLocal({{.heads = 2,
               .head_dim = 64,
               .q_lens = {40, 5, 130, 0, 9},
               .kv_lens = {300, 90, 130, 50, 0},
               .positions = {100, 85, 0, 7, 3},
               .bias = BiasKind::kTable,
               .scale = 0.2f},
              30,
              16,
              {18, 0, 200, 3, 70}},
             501);
  CheckLocal({{.heads = 2,
               .head_dim = 256,
               .q_lens = {70, 20},
               .kv_lens = {70, 20},
               .positions = {},
               .bias = BiasKind::kNone,
               .scale = 0.1f},
              9,
              7},
             503);
  CheckLocal({{.heads = 2,
               .head_dim = 64,
               .q_lens = {200},
               .kv_lens = {200},
               .positions = {},
               .bias = BiasKind::kAlibi,
               .scale = 0.2f},
              50,
              16},
             505);
}

TEST_CASE("the reach of a mask changes no bit", "[attention]") {
  uint32_t seed = 600;
  for (int64_t dim : {24, 64, 128}) {
    const std::vector<int32_t> lens = Pick({700, 129, 1, 300}, {300, 5});
    const LocalShape shape = {{.heads = 2,
                               .head_dim = dim,
                               .q_lens = lens,
                               .kv_lens = lens,
                               .positions = {},
                               .bias = BiasKind::kTable,
                               .scale = 0.2f},
                              dim == 64 ? 3 : 100};
    CheckLocal(shape, seed += 2);
    ForEachBackend([&](TestBackend& backend) {
      for (const Layout& layout : Layouts(backend, seed)) {
        LocalShape aligned = shape;
        aligned.own.gap = layout.gap;
        const LocalProblem problem(aligned, seed, layout.dtype);
        const LocalInputs inputs(problem, backend);
        AttentionArgs args = inputs.Args();
        const std::vector<float> with = Run(args, backend);
        ColumnMask mask = inputs.mask();
        mask.reach = 0;
        args.mask = &mask;
        CHECK(SameBits(with, Run(args, backend)));
      }
    });
  }
}

TEST_CASE(
    "a row with global keys has the same bits alone, in any slice, with any number of threads",
    "[attention]") {
  const std::vector<int32_t> lens = Pick({400, 3, 150, 64}, {150, 3, 70});
  const LocalProblem problem({{.heads = 2,
                               .head_dim = 40,
                               .q_lens = lens,
                               .kv_lens = lens,
                               .positions = {},
                               .bias = BiasKind::kTable,
                               .scale = 0.3f},
                              33,
                              4},
                             701, DType::kF32);
  ForEachBackend([&](TestBackend& backend) {
    const LocalInputs inputs(problem, backend);
    const std::vector<float> whole = Run(inputs.Args(), backend);
    if (backend.stream().backend() == Backend::kCpu) {
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        Stream stream(&pool);
        CHECK(SameBits(whole, Run(inputs.Args(), backend, stream)));
      }
    }
    for (size_t s = 0; s < lens.size(); ++s) {
      for (int64_t step : Pick({1, 5, 8, 9, 37, 64, 400}, {9, 64})) {
        for (int64_t begin = 0; begin < lens[s]; begin += step) {
          const int64_t end = std::min<int64_t>(begin + step, lens[s]);
          AttentionArgs args = inputs.Args();
          const std::span<const int32_t> numbers = backend.Plan(std::vector<int32_t>{
              0, static_cast<int32_t>(end - begin), static_cast<int32_t>(begin),
              problem.own.kv_offsets[s], problem.own.kv_offsets[s + 1]});
          args.q = args.q.Rows(problem.own.q_offsets[s] + begin, problem.own.q_offsets[s] + end);
          args.q_offsets = numbers.subspan(0, 2);
          args.q_positions = numbers.subspan(2, 1);
          args.kv_offsets = numbers.subspan(3, 2);
          ColumnMask mask = inputs.mask();
          mask.tiles = mask.tiles.subspan(s);
          args.mask = &mask;
          GlobalKeys globals = inputs.globals();
          globals.offsets = globals.offsets.subspan(s, 2);
          args.globals = &globals;
          const std::vector<float> part = Run(args, backend);
          const float* expected =
              whole.data() + (problem.own.q_offsets[s] + begin) * problem.own.width();
          REQUIRE(std::memcmp(part.data(), expected, part.size() * sizeof(float)) == 0);
        }
      }
    }
  });
}

}  // namespace
}  // namespace quintet::attention_test
