#include "kernels/sampling/selection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distribution of the scores of a problem.
enum class SelectionFill {
  kRandom,
  kTies,
  kEqual,
  kMinusInf,
  kFewFinite,
  kNan,
  kAscending,
  kCluster,
  kInfinities
};
// A GPU kernel ranks only the scores that reach a lower bound of the k-th best score. In some of
// these distributions, more scores equal this bound than the candidate buffer can hold.
std::vector<SelectionFill> Fills() {
  return Pick({SelectionFill::kRandom, SelectionFill::kTies, SelectionFill::kEqual,
               SelectionFill::kMinusInf, SelectionFill::kFewFinite, SelectionFill::kNan,
               SelectionFill::kAscending, SelectionFill::kCluster, SelectionFill::kInfinities},
              {SelectionFill::kRandom, SelectionFill::kTies, SelectionFill::kNan});
}

float Entry(SelectionFill fill, int64_t i, int64_t vocab, RandomData& random) {
  switch (fill) {
    case SelectionFill::kRandom:
      return 10.0f * random.Value();
    case SelectionFill::kTies:
      return static_cast<float>(random.Below(4));
    case SelectionFill::kEqual:
      return -2.5f;
    case SelectionFill::kMinusInf:
      return -kInf;
    case SelectionFill::kFewFinite:
      return random.Below(1 + vocab / 5) == 0 ? random.Value() : -kInf;
    case SelectionFill::kNan:
      return random.Below(3) == 0 ? NAN : static_cast<float>(random.Below(50)) - 25.0f;
    case SelectionFill::kAscending:
      return static_cast<float>(i) * 0.001f;
    case SelectionFill::kCluster:  // the best values are adjacent, in one chunk
      return i >= vocab / 2 && i < vocab / 2 + 40 ? 5.0f + random.Value() : random.Value();
    case SelectionFill::kInfinities:
      return random.Below(10) == 0 ? kInf : random.Below(2) == 0 ? -kInf : random.Value();
  }
  return 0.0f;
}

struct SelectionProblem {
  int64_t vocab;
  std::vector<float> scores, shift, bias;  // shift and bias may be empty
  std::vector<int32_t> row_offsets, k;
};

struct Answer {
  std::vector<float> values;
  std::vector<int32_t> indices;
  bool operator==(const Answer& o) const {
    return indices == o.indices &&
           std::memcmp(values.data(), o.values.data(), values.size() * sizeof(float)) == 0;
  }
};

// Reference: a stable full sort of the values of every request.
Answer FullSort(const SelectionProblem& p, int64_t k_max) {
  Answer answer;
  for (size_t n = 0; n < p.k.size(); ++n) {
    std::vector<float> values;
    for (int32_t r = p.row_offsets[n]; r < p.row_offsets[n + 1]; ++r) {
      const size_t row = static_cast<size_t>(r);
      for (int64_t i = 0; i < p.vocab; ++i) {
        float v = p.scores[row * static_cast<size_t>(p.vocab) + static_cast<size_t>(i)];
        if (!p.shift.empty()) v = v - p.shift[row];
        if (!p.bias.empty()) v = v + p.bias[row];
        values.push_back(std::isnan(v) ? -kInf : v);
      }
    }
    std::vector<int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    for (size_t i = 0; i < static_cast<size_t>(k_max); ++i) {
      const bool exists = i < order.size() && i < static_cast<size_t>(p.k[n]);
      answer.indices.push_back(exists ? order[i] : -1);
      answer.values.push_back(exists ? values[static_cast<size_t>(order[i])] : -kInf);
    }
  }
  return answer;
}

// Options of RunTopK. Rows of scores are vocab + gap elements apart. If `log_softmax` is not empty,
// it is passed on as TopKArgs::log_softmax.
struct SelectionInputs {
  int64_t gap = 0;
  std::vector<int32_t> log_softmax = {};
  std::vector<float> log_sums = {};  // output, if log_softmax is not empty
};

Answer RunTopK(const SelectionProblem& p, int64_t k_max, TestBackend& backend,
               SelectionInputs* inputs = nullptr) {
  const int64_t rows = p.row_offsets.back(), n = static_cast<int64_t>(p.k.size());
  TopKArgs args;
  args.scores = backend.Put(p.scores, {rows, p.vocab});
  if (!p.shift.empty()) args.row_shift = backend.Put(p.shift, {rows});
  if (!p.bias.empty()) args.row_bias = backend.Put(p.bias, {rows});
  args.row_offsets = backend.Plan(p.row_offsets);
  args.k = backend.Plan(p.k);
  args.values = backend.Poisoned(DType::kF32, {n, k_max});
  args.indices = backend.Poisoned(DType::kI32, {n, k_max});
  args.best = backend.Poisoned(DType::kI32, {n});
  args.scratch = backend.Scratch(TopKScratchBytes(rows, p.vocab, k_max, backend.stream()));
  if (inputs != nullptr) {
    std::vector<float> spread;
    for (auto row = p.scores.begin(); row != p.scores.end(); row += p.vocab) {
      spread.insert(spread.end(), row, row + p.vocab);
      spread.insert(spread.end(), static_cast<size_t>(inputs->gap), 1e30f);
    }
    args.scores = backend.Put(spread, {rows, p.vocab});
    args.scores.stride[0] = p.vocab + inputs->gap;
    if (!inputs->log_softmax.empty()) {
      args.log_softmax = backend.Plan(inputs->log_softmax);
      args.log_sums = backend.Poisoned(DType::kF32, {rows});
    }
  }
  TopK(args, backend.stream());
  if (args.log_sums.defined()) inputs->log_sums = backend.Floats(args.log_sums);
  const Answer answer{backend.Floats(args.values), backend.Ints(args.indices)};
  const std::vector<int32_t> best = backend.Ints(args.best);
  for (size_t i = 0; i < best.size(); ++i) {
    CHECK(best[i] == answer.indices[i * static_cast<size_t>(k_max)]);
  }
  return answer;
}

std::vector<float> RunLogSumExp(const std::vector<float>& logits, int64_t vocab,
                                TestBackend& backend) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / vocab;
  const Tensor out = backend.Poisoned(DType::kF32, {rows});
  LogSumExp({.logits = backend.Put(logits, {rows, vocab}), .out = out}, backend.stream());
  return backend.Floats(out);
}

SelectionProblem MakeProblem(int64_t vocab, SelectionFill fill, std::vector<int32_t> row_offsets,
                             std::vector<int32_t> k, uint32_t seed) {
  RandomData random(seed);
  SelectionProblem p{vocab, {}, {}, {}, std::move(row_offsets), std::move(k)};
  for (int32_t r = 0; r < p.row_offsets.back(); ++r) {
    for (int64_t i = 0; i < vocab; ++i) p.scores.push_back(Entry(fill, i, vocab, random));
  }
  if (seed % 4 != 0) p.shift = random.Values(p.row_offsets.back(), 8.0f);
  // The bias of a row is the running score of a beam, which is added to every score of the row. If
  // it is large, the sums of different scores round to the same value, which creates ties.
  if (seed % 2 != 0) p.bias = random.Values(p.row_offsets.back(), seed % 3 == 0 ? 3e6f : 20.0f);
  return p;
}

void CheckProblem(const SelectionProblem& p) {
  const int64_t k_max = *std::max_element(p.k.begin(), p.k.end());
  const Answer expected = FullSort(p, k_max);
  ForEachBackend([&](TestBackend& backend) { CHECK(RunTopK(p, k_max, backend) == expected); });
}

TEST_CASE("top-k equals a stable full sort: small vocabularies", "[selection]") {
  uint32_t seed = 1;
  for (int64_t vocab : Pick<int64_t>({1, 7, 64, 65, 1000}, {7, 1000})) {
    for (SelectionFill fill : Fills()) {
      for (int32_t k : Pick({1, 2, 8, 65, 192}, {2, 192})) {
        CheckProblem(MakeProblem(vocab, fill, {0, 1, 5, 5, 8}, {k, 2 * k, k, 1}, seed++));
      }
    }
  }
}

TEST_CASE("top-k equals a stable full sort: the vocabulary of T5", "[selection]") {
  uint32_t seed = 1000;
  for (SelectionFill fill : Fills()) {
    for (int32_t k : Pick({1, 8, 50, 192}, {1, 192})) {
      CheckProblem(MakeProblem(32128, fill, {0, 4, 5}, {k, 1}, seed++));
    }
  }
}

TEST_CASE("top-k equals a stable full sort: the vocabulary of mT5", "[selection]") {
  uint32_t seed = 2000;
  for (SelectionFill fill :
       {SelectionFill::kRandom, SelectionFill::kTies, SelectionFill::kAscending}) {
    CheckProblem(
        MakeProblem(250112, fill, {0, 2}, {fill == SelectionFill::kTies ? 192 : 8}, seed++));
  }
}

TEST_CASE("top-k of 64 beams equals a stable full sort", "[selection]") {
  CheckProblem(MakeProblem(503, SelectionFill::kRandom, {0, 64, 128}, {192, 3 * 64}, 3001));
  CheckProblem(MakeProblem(503, SelectionFill::kTies, {0, 64, 128}, {192, 3 * 64}, 3003));
}

TEST_CASE("top-k of the largest supported k equals a stable full sort", "[selection]") {
  std::vector<int32_t> each_row(65);
  std::iota(each_row.begin(), each_row.end(), 0);
  for (SelectionFill fill :
       Pick({SelectionFill::kRandom, SelectionFill::kTies, SelectionFill::kCluster},
            {SelectionFill::kTies})) {
    CheckProblem(MakeProblem(2000, fill, {0, 32, 64}, {544, 1}, 3101));
    CheckProblem(MakeProblem(5000, fill, {0, 1}, {544}, 3102));
    CheckProblem(MakeProblem(1000, fill, each_row, std::vector<int32_t>(64, 3), 3103));
  }
}

TEST_CASE("top-k of the largest vocabulary equals a stable full sort", "[selection]") {
  CheckProblem(MakeProblem(256206, SelectionFill::kRandom, {0, 2}, {50}, 3201));
  CheckProblem(MakeProblem(256206, SelectionFill::kEqual, {0, 1}, {50}, 3202));
}

TEST_CASE("top-k of rows at any alignment equals a stable full sort", "[selection]") {
  for (int64_t gap : {1, 2, 3, 4, 7, 500}) {
    const SelectionProblem p = MakeProblem(3001, SelectionFill::kRandom, {0, 3, 4}, {9, 2}, 3301);
    const Answer expected = FullSort(p, 9);
    ForEachBackend([&](TestBackend& backend) {
      SelectionInputs inputs{.gap = gap};
      CHECK(RunTopK(p, 9, backend, &inputs) == expected);
    });
  }
}

TEST_CASE("top-k of log-probabilities equals a stable full sort, with log-sum-exp in the same pass",
          "[selection]") {
  uint32_t seed = 4000;
  for (int64_t vocab : Pick<int64_t>({1, 64, 384, 511, 513, 32128, 50257}, {64, 513, 50257})) {
    for (SelectionFill fill : Fills()) {
      SelectionProblem p = MakeProblem(vocab, fill, {0, 3, 3, 4, 6}, {6, 2, 20, 3}, seed += 2);
      ForEachBackend([&](TestBackend& backend) {
        SelectionInputs inputs{.log_softmax = {1, 1, 0, 7}};
        const std::vector<float> sums = RunLogSumExp(p.scores, vocab, backend);
        SelectionProblem shifted = p;
        if (shifted.shift.empty()) shifted.shift.assign(6, 0.0f);
        for (size_t row : {0, 1, 2, 4, 5}) shifted.shift[row] = sums[row];
        const Answer expected = FullSort(shifted, 20);
        CHECK(RunTopK(p, 20, backend, &inputs) == expected);
        CHECK(std::memcmp(inputs.log_sums.data(), sums.data(), sums.size() * sizeof(float)) == 0);
      });
    }
  }
}

TEST_CASE("a beam with score -inf yields no candidates", "[selection]") {
  SelectionProblem p = MakeProblem(500, SelectionFill::kRandom, {0, 4}, {8}, 5);
  p.bias = {0.0f, -1e9f, -1e9f, -1e9f};
  ForEachBackend([&](TestBackend& backend) {
    const Answer answer = RunTopK(p, 8, backend);
    for (int32_t index : answer.indices) CHECK(index < 500);
    CHECK(answer == FullSort(p, 8));
  });
}

TEST_CASE("log-sum-exp equals the reference in double", "[selection]") {
  for (int64_t vocab :
       Pick<int64_t>({1, 7, 16, 63, 511, 512, 513, 2047, 2048, 2049, 32128, 50257, 250112},
                     {7, 513, 2049, 50257})) {
    const int64_t rows = vocab > 1000 ? 3 : 20;
    for (float spread : Pick({0.0f, 1.0f, 12.0f, 300.0f}, {12.0f})) {
      std::vector<float> logits =
          RandomData(static_cast<uint32_t>(vocab)).Values(rows * vocab, spread);
      for (float& x : logits) x -= 5.0f;
      ForEachBackend([&](TestBackend& backend) {
        const std::vector<float> got = RunLogSumExp(logits, vocab, backend);
        for (size_t r = 0; r < got.size(); ++r) {
          const auto begin = logits.begin() + static_cast<int64_t>(r) * vocab;
          const double max = double{*std::max_element(begin, begin + vocab)};
          double sum = 0;
          for (auto x = begin; x != begin + vocab; ++x) sum += std::exp(double{*x} - max);
          const double expected = max + std::log(sum);
          REQUIRE(std::abs(double{got[r]} - expected) < 2e-7 * std::max(1.0, std::abs(expected)));
        }
        // A row alone must give the same bits as in the batch.
        const std::vector<float> last(logits.end() - vocab, logits.end());
        CHECK(RunLogSumExp(last, vocab, backend)[0] == got.back());
      });
    }
  }
}

TEST_CASE("log-sum-exp has the same bits for any number of threads", "[selection][cpu]") {
  const std::vector<float> logits = RandomData(6).Values(20 * 5000, 12.0f);
  const auto run = [&](int threads) {
    ThreadPool pool(threads);
    Stream stream(&pool);
    std::vector<float> out(20, NAN);
    LogSumExp(
        {.logits = Tensor::F32(logits.data(), {20, 5000}), .out = Tensor::F32(out.data(), {20})},
        stream);
    return out;
  };
  CHECK(run(1) == run(3));
}

TEST_CASE("log-sum-exp of infinities and NaN follows the definition", "[selection]") {
  ForEachBackend([](TestBackend& backend) {
    std::vector<float> row(100, -kInf);
    CHECK(RunLogSumExp(row, 100, backend)[0] == -kInf);
    row[57] = 3.25f;
    CHECK(RunLogSumExp(row, 100, backend)[0] == 3.25f);
    row[99] = kInf;
    CHECK(RunLogSumExp(row, 100, backend)[0] == kInf);
    row[99] = NAN;
    CHECK(std::isnan(RunLogSumExp(row, 100, backend)[0]));
  });
}

}  // namespace
}  // namespace quintet
