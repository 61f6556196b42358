#include "kernels/sampling/beam_step.h"

#include <algorithm>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/sampling/never.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr int32_t kPoison = 0x55555555;

struct Beam {
  float score;
  int32_t token, parent;
};

// Reference: one step of beam search as in Hugging Face. Returns the beams that it selects to
// continue.
std::vector<Beam> PlainStep(const std::vector<float>& values, const std::vector<int32_t>& indices,
                            int64_t vocab, const std::vector<int32_t>& eos, int32_t beams) {
  std::vector<Beam> all;
  for (size_t k = 0; k < values.size() && indices[k] >= 0; ++k) {
    all.push_back({values[k], static_cast<int32_t>(indices[k] % vocab),
                   static_cast<int32_t>(indices[k] / vocab)});
  }
  while (static_cast<int32_t>(all.size()) < beams) all.push_back({kNever, 0, 0});
  for (Beam& b : all) {
    if (std::count(eos.begin(), eos.end(), b.token) > 0) b.score += -1e9f;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Beam& a, const Beam& b) { return a.score > b.score; });
  all.resize(static_cast<size_t>(beams));
  return all;
}

TEST_CASE("the selected beams are the best candidates that do not end", "[beam_step]") {
  constexpr int64_t kVocab = 20, kMost = 544, kRows = 200;
  RandomData random(5);
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t n = 1 + random.Below(5);
    std::vector<BeamGroup> groups;
    std::vector<int32_t> eos, indices;
    std::vector<float> values;
    std::vector<int32_t> tokens(kRows, kPoison), parents(kRows, kPoison);
    std::vector<float> scores(kRows);
    int32_t row = static_cast<int32_t>(random.Below(9));
    for (int64_t i = 0; i < n; ++i) {
      BeamGroup g{.entry = static_cast<int32_t>(n - 1 - i), .row = row};
      g.beams = static_cast<int32_t>(1 + random.Below(trial % 4 == 0 ? 32 : 5));
      g.eos_begin = static_cast<int32_t>(eos.size());
      for (int64_t e = random.Below(4); e > 0; --e) {
        eos.push_back(static_cast<int32_t>(random.Below(kVocab)));
      }
      g.eos_end = static_cast<int32_t>(eos.size());
      row += g.beams + static_cast<int32_t>(random.Below(3));
      groups.push_back(g);
    }
    // Make random top-k candidates for each beam group. Some candidates have equal scores, and some
    // groups have fewer candidates than the search needs.
    for (int64_t entry = 0; entry < n; ++entry) {
      const int64_t known = random.Below(3) == 0 ? random.Below(12) : kMost;
      for (int64_t k = 0; k < kMost; ++k) {
        const bool there = k < known;
        const float value = static_cast<float>(-k / 3) - (random.Below(50) == 0 ? 1e9f : 0.0f);
        values.push_back(there && random.Below(20) != 0 ? value : kNever);
        indices.push_back(there ? static_cast<int32_t>(random.Below(32 * kVocab)) : -1);
      }
    }
    for (const BeamGroup& g : groups) {
      const auto begin = g.entry * kMost, end = begin + kMost;
      const std::vector<Beam> beams =
          PlainStep({values.begin() + begin, values.begin() + end},
                    {indices.begin() + begin, indices.begin() + end}, kVocab,
                    {eos.begin() + g.eos_begin, eos.begin() + g.eos_end}, g.beams);
      for (size_t b = 0; b < beams.size(); ++b) {
        const auto at = static_cast<size_t>(g.row) + b;
        tokens[at] = beams[b].token;
        parents[at] = beams[b].parent;
        scores[at] = beams[b].score;
      }
    }
    ForEachBackend([&](TestBackend& backend) {
      BeamStepArgs args;
      args.values = backend.Put(values, {n, kMost});
      args.indices = backend.PutBytes(indices.data(), static_cast<int64_t>(indices.size()) * 4,
                                      DType::kI32, {n, kMost});
      args.vocab = kVocab;
      args.groups = backend.Plan(groups);
      args.eos = backend.Plan(eos);
      args.tokens = backend.Poisoned(DType::kI32, {kRows});
      args.parents = backend.Poisoned(DType::kI32, {kRows});
      args.scores = backend.Put(std::vector<float>(kRows), {kRows});
      BeamStep(args, backend.stream());
      CHECK(backend.Ints(args.tokens) == tokens);
      CHECK(backend.Ints(args.parents) == parents);
      CHECK(backend.Floats(args.scores) == scores);
    });
  }
}

TEST_CASE("GatherScores takes scores from the device or from the host", "[beam_step]") {
  RandomData random(6);
  constexpr int64_t kRows = 300, kScores = 70;
  const std::vector<float> scores = random.Values(kScores), known = random.Values(kRows);
  std::vector<int32_t> from;
  std::vector<float> expected;
  for (size_t r = 0; r < kRows; ++r) {
    from.push_back(static_cast<int32_t>(random.Below(kScores + 30)) - 30);
    from.back() = std::max(from.back(), -1);
    expected.push_back(from[r] >= 0 ? scores[static_cast<size_t>(from[r])] : known[r]);
  }
  ForEachBackend([&](TestBackend& backend) {
    GatherScoresArgs args;
    args.scores = backend.Put(scores, {kScores});
    args.known = backend.Put(known, {kRows});
    args.from = backend.Plan(from);
    args.biases = backend.Poisoned(DType::kF32, {kRows});
    GatherScores(args, backend.stream());
    CHECK(backend.Floats(args.biases) == expected);
  });
}

TEST_CASE("ReorderBeams copies the slots of the parent beam except the last", "[beam_step]") {
  RandomData random(7);
  for (int trial = 0; trial < 12; ++trial) {
    const int64_t stride = 1 + random.Below(trial % 3 == 0 ? 700 : 40);
    std::vector<BeamMove> moves;
    std::vector<int32_t> lens, parents, slots;
    for (int64_t i = random.Below(5); i >= 0; --i) {
      if (random.Below(2) == 0) lens.push_back(static_cast<int32_t>(1 + random.Below(stride)));
      BeamMove m{.sequence = static_cast<int32_t>(lens.size()),
                 .beams = static_cast<int32_t>(1 + random.Below(32)),
                 .row = static_cast<int32_t>(parents.size())};
      const auto len = static_cast<int32_t>(i == 0 ? stride : 1 + random.Below(stride));
      for (int32_t beam = 0; beam < m.beams; ++beam) {
        lens.push_back(len);
        parents.push_back(static_cast<int32_t>(random.Below(m.beams)));
      }
      moves.push_back(m);
    }
    const auto n = static_cast<int64_t>(lens.size());
    for (int64_t i = 0; i < n * stride; ++i) slots.push_back(static_cast<int32_t>(i));
    std::vector<int32_t> expected = slots;
    for (const BeamMove& m : moves) {
      for (int32_t beam = 0; beam < m.beams; ++beam) {
        const int64_t to = (m.sequence + beam) * stride;
        const int64_t from = (m.sequence + parents[static_cast<size_t>(m.row + beam)]) * stride;
        for (int64_t i = 0; i + 1 < lens[static_cast<size_t>(m.sequence)]; ++i) {
          expected[static_cast<size_t>(to + i)] = slots[static_cast<size_t>(from + i)];
        }
      }
    }
    ForEachBackend([&](TestBackend& backend) {
      ReorderBeamsArgs args;
      const Tensor table = backend.Put(slots, {n, stride});
      args.slots = table.as<const int32_t>();
      args.slots_stride = stride;
      args.lens = backend.Plan(lens);
      args.moves = backend.Plan(moves);
      args.parents = backend.PutBytes(parents.data(), static_cast<int64_t>(parents.size()) * 4,
                                      DType::kI32, {static_cast<int64_t>(parents.size())});
      ReorderBeams(args, backend.stream());
      CHECK(backend.Ints(backend.stream().DeviceTensor(table)) == expected);
    });
  }
}

}  // namespace
}  // namespace quintet
