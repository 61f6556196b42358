#include "kernels/sampling/beam_sampling.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"
#include "kernels/sampling/warper.h"
#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/sampling/never.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

struct BeamSamplingProblem {
  int64_t vocab = 0, gap = 0, k_max = 0;
  std::vector<float> logits;  // row stride vocab + gap
  std::vector<float> biases;
  std::vector<BeamDraw> draws;
  std::vector<int32_t> lens;

  int64_t rows() const { return static_cast<int64_t>(biases.size()); }
};

struct Candidates {
  std::vector<float> values;
  std::vector<int32_t> indices;
};

// Reference: computes the random GumbelKey of every token that survives the warpers (temperature,
// top-k, top-p, ...), sorts all of these tokens by key, and returns the first k.
Candidates PlainDraws(const BeamSamplingProblem& p, const BeamDraw& d) {
  struct Keyed {
    double key;
    float value;
    int32_t index;
  };
  std::vector<Keyed> all;
  std::vector<uint64_t> scratch(static_cast<size_t>(Warper::ScratchBytes(p.vocab)) / 8);
  Warper warper(scratch.data(), p.vocab);
  const DrawId draw_id{d.draw.seed, d.draw.sequence,
                       static_cast<uint32_t>(p.lens[static_cast<size_t>(d.draw.lens_at)])};
  for (int32_t beam = 0; beam < d.rows; ++beam) {
    const auto row = static_cast<size_t>(d.draw.row + beam);
    const float* logits = p.logits.data() + row * static_cast<size_t>(p.vocab + p.gap);
    for (const WarpedToken& w : warper.Warp({logits, static_cast<size_t>(p.vocab)}, d.draw.warp)) {
      const float value = w.value + p.biases[row];
      const auto index = static_cast<int32_t>(beam * p.vocab + w.token);
      all.push_back({GumbelKey(value, draw_id, static_cast<uint32_t>(index)), value, index});
    }
  }
  std::sort(all.begin(), all.end(), [](const Keyed& a, const Keyed& b) {
    return a.key != b.key ? a.key > b.key : a.index < b.index;
  });
  Candidates best;
  for (size_t i = 0; i < static_cast<size_t>(p.k_max); ++i) {
    const bool there = i < all.size() && static_cast<int32_t>(i) < d.k;
    best.values.push_back(there ? all[i].value : kNever);
    best.indices.push_back(there ? all[i].index : -1);
  }
  return best;
}

std::vector<Candidates> Run(const BeamSamplingProblem& p, TestBackend& backend) {
  const auto n = static_cast<int64_t>(p.draws.size());
  SampleBeamsArgs args;
  args.logits = backend.Put(p.logits, {p.rows(), p.vocab});
  args.logits.stride[0] = p.vocab + p.gap;
  args.row_bias = backend.Put(p.biases, {p.rows()});
  args.draws = backend.Plan(p.draws);
  args.lens = backend.Plan(p.lens);
  args.values = backend.Poisoned(DType::kF32, {n, p.k_max});
  args.indices = backend.Poisoned(DType::kI32, {n, p.k_max});
  args.scratch =
      backend.Scratch(SampleBeamsScratchBytes(p.rows(), p.vocab, p.k_max, backend.stream()));
  SampleBeams(args, backend.stream());
  const std::vector<float> values = backend.Floats(args.values);
  const std::vector<int32_t> indices = backend.Ints(args.indices);
  std::vector<Candidates> results;
  for (const BeamDraw& d : p.draws) {
    const auto begin = d.entry * p.k_max, end = begin + p.k_max;
    results.push_back({{values.begin() + begin, values.begin() + end},
                       {indices.begin() + begin, indices.begin() + end}});
  }
  return results;
}

enum class Filters { kNone, kTopK, kAll };

WarpOptions RandomWarp(RandomData& random, int64_t vocab, Filters filters) {
  WarpOptions w;
  w.keep = static_cast<int32_t>(2 + random.Below(3));
  if (random.Below(2) == 0) w.temperature = 0.3f + 0.1f * static_cast<float>(random.Below(20));
  if (filters == Filters::kNone) return w;
  w.top_k = static_cast<int32_t>(1 + random.Below(random.Below(4) == 0 ? vocab + 3 : 60));
  if (filters == Filters::kTopK) return w;
  if (random.Below(2) == 0) w.top_k = 0;
  // `keep` is the number of most likely tokens that every filter must leave. The filters below are
  // often so restrictive that no other tokens remain.
  if (random.Below(2) == 0) w.top_p = 0.02f + 0.07f * static_cast<float>(random.Below(14));
  if (random.Below(3) == 0) w.min_p = 0.02f + 0.2f * static_cast<float>(random.Below(5));
  if (random.Below(3) == 0) w.typical_p = 0.02f + 0.07f * static_cast<float>(random.Below(14));
  return w;
}

BeamSamplingProblem MakeProblem(int64_t vocab, Filters filters, int requests, uint32_t seed) {
  RandomData random(seed);
  BeamSamplingProblem p{.vocab = vocab, .gap = static_cast<int64_t>(seed % 3), .k_max = 544};
  for (int i = 0; i < 5; ++i) p.lens.push_back(static_cast<int32_t>(1 + random.Below(1000)));
  for (int i = 0; i < requests; ++i) {
    BeamDraw d;
    d.draw = {.seed = 1234567 * static_cast<uint64_t>(random.Below(1 << 20)),
              .row = static_cast<int32_t>(p.rows()),
              .lens_at = static_cast<int32_t>(random.Below(5)),
              .sequence = 0,
              .warp = RandomWarp(random, vocab, filters)};
    d.rows = static_cast<int32_t>(1 + random.Below(5));
    d.entry = requests - 1 - i;
    d.k = static_cast<int32_t>(random.Below(4) == 0 ? 544 : 2 * d.rows);
    for (int32_t row = 0; row < d.rows; ++row) p.biases.push_back(4.0f * random.Value());
    if (random.Below(4) == 0) p.biases.back() = random.Below(2) == 0 ? -1e9f : kNever;
    p.draws.push_back(d);
  }
  for (int64_t row = 0; row < p.rows(); ++row) {
    const bool few = random.Below(5) == 0, none = random.Below(12) == 0, ties = seed % 4 == 3;
    for (int64_t i = 0; i < vocab + p.gap; ++i) {
      const bool never = none || (few && random.Below(1 + vocab / 9) != 0);
      const float value = ties ? static_cast<float>(random.Below(6))
                               : 3.0f * (random.Value() + random.Value() + random.Value());
      p.logits.push_back(never ? kNever : value);
    }
  }
  return p;
}

// Compares the candidates of every request with those of a full sort. On a CPU they must be equal
// for all requests. On a GPU they may differ for one request because of rounding. If `sums` is
// true, the filters depend on rounded sums and logarithms; then they may differ for one request
// plus 2 % of the requests.
void CheckProblem(const BeamSamplingProblem& p, bool sums) {
  std::vector<Candidates> expected;
  for (const BeamDraw& d : p.draws) expected.push_back(PlainDraws(p, d));
  ForEachBackend([&](TestBackend& backend) {
    const std::vector<Candidates> got = Run(p, backend);
    int different = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const bool same =
          got[i].indices == expected[i].indices && got[i].values == expected[i].values;
      different += same ? 0 : 1;
      const WarpOptions& w = p.draws[i].draw.warp;
      INFO("vocab " << p.vocab << " request " << i << " rows " << p.draws[i].rows << " k "
                    << p.draws[i].k << " keep " << w.keep << " top_k " << w.top_k << " top_p "
                    << w.top_p << " min_p " << w.min_p << " typical_p " << w.typical_p);
      CHECK((same || backend.device() != nullptr));
    }
    INFO("vocab " << p.vocab << ": " << different << " of " << got.size());
    CHECK(different <= (sums ? 1 + static_cast<int>(got.size()) / 50 : 1));
  });
}

TEST_CASE("beam sampling equals a full sort of all keys: small vocabularies", "[beam_sampling]") {
  uint32_t seed = 1;
  for (const int64_t vocab : Pick<int64_t>({1, 2, 7, 64, 333, 1500, 3000}, {1, 7, 3000})) {
    for (int i = 0; i < Pick(4, 1); ++i) {
      CheckProblem(MakeProblem(vocab, Filters::kNone, 12, seed++), false);
      CheckProblem(MakeProblem(vocab, Filters::kTopK, 12, seed++), false);
      CheckProblem(MakeProblem(vocab, Filters::kAll, 20, seed++), true);
    }
  }
}

TEST_CASE("beam sampling equals a full sort of all keys: the vocabularies of T5 and GPT-2",
          "[beam_sampling]") {
  uint32_t seed = 500;
  for (const int64_t vocab : {32128, 50257}) {
    CheckProblem(MakeProblem(vocab, Filters::kNone, 3, seed++), false);
    CheckProblem(MakeProblem(vocab, Filters::kTopK, 5, seed++), false);
    CheckProblem(MakeProblem(vocab, Filters::kAll, 8, seed++), true);
  }
}

TEST_CASE("beam sampling of values that increase along the row equals a full sort",
          "[beam_sampling]") {
  BeamSamplingProblem p = MakeProblem(20000, Filters::kNone, 2, 900);
  for (size_t i = 0; i < p.logits.size(); ++i) {
    p.logits[i] = 0.01f * static_cast<float>(i % static_cast<size_t>(p.vocab + p.gap));
  }
  CheckProblem(p, false);
}

TEST_CASE("beam sampling of a request depends only on its own rows", "[beam_sampling]") {
  const BeamSamplingProblem all = MakeProblem(1000, Filters::kAll, 10, 4000);
  ForEachBackend([&](TestBackend& backend) {
    const std::vector<Candidates> together = Run(all, backend);
    for (size_t i = 0; i < together.size(); ++i) {
      BeamSamplingProblem alone = all;
      alone.draws = {all.draws[i]};
      alone.draws[0].entry = 0;
      const Candidates got = Run(alone, backend)[0];
      CHECK((got.indices == together[i].indices && got.values == together[i].values));
    }
  });
}

}  // namespace
}  // namespace quintet
