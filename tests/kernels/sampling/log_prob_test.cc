#include "kernels/sampling/log_prob.h"
#include "kernels/linear/weight.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/runtime/cpu_features.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

struct LogProbCase {
  int64_t rows = 1, vocab = 1, k = 1, top = 0;
  WeightType type = WeightType::kF32;
  bool bias = false;
  float alpha = 1.0f;
};

struct Outputs {
  std::vector<float> log_probs, top_log_probs;
  std::vector<int32_t> top_tokens;
};

struct Head {
  std::vector<float> hidden, bias;
  std::vector<int32_t> targets;
  LinearWeight weight;
};

Head MakeHead(const LogProbCase& c, TestBackend& backend) {
  Head h;
  h.hidden = Random(c.rows * c.k, 1, 1.0f);
  h.bias = Random(c.vocab, 2, 2.0f);
  for (int64_t r = 0; r < c.rows; ++r) {
    h.targets.push_back(static_cast<int32_t>(r * 7919 % c.vocab));
  }
  h.weight = *LinearWeight::Allocate(c.vocab, c.k, c.type, false, backend.device());
  const std::vector<float> w = Random(c.vocab * c.k, 3, 1.0f);
  h.weight.Pack(0, Tensor::F32(w.data(), {c.vocab, c.k}));
  return h;
}

// Computes the log-probabilities of the targets for the rows [first, first + rows) of the hidden
// states only.
Outputs Run(const LogProbCase& c, const Head& h, int64_t first, int64_t rows,
            TestBackend& backend) {
  const int64_t gemms = backend.stream().gemms();
  TargetLogProbArgs args;
  args.hidden = backend.Put(h.hidden, {c.rows, c.k}).Rows(first, first + rows);
  args.head = &h.weight;
  if (c.bias) args.bias = backend.Put(h.bias, {c.vocab});
  args.alpha = c.alpha;
  args.targets = backend.Put(h.targets, {c.rows}).Rows(first, first + rows);
  args.log_probs = backend.Poisoned(DType::kF32, {rows});
  if (c.top > 0) {
    args.top_log_probs = backend.Poisoned(DType::kF32, {rows, c.top});
    args.top_tokens = backend.Poisoned(DType::kI32, {rows, c.top});
  }
  args.scratch =
      backend.Scratch(TargetLogProbScratchBytes(h.weight, rows, c.top, backend.stream()));
  TargetLogProb(args, backend.stream());
  CHECK(backend.stream().gemms() == gemms + 1);
  Outputs out;
  out.log_probs = backend.Floats(args.log_probs);
  if (c.top > 0) {
    out.top_log_probs = backend.Floats(args.top_log_probs);
    out.top_tokens = backend.Ints(args.top_tokens);
  }
  return out;
}

std::vector<float> Logits(const LogProbCase& c, const Head& h, TestBackend& backend) {
  LinearArgs args;
  args.x = backend.Put(h.hidden, {c.rows, c.k});
  args.w = &h.weight;
  if (c.bias) args.bias = backend.Put(h.bias, {c.vocab});
  args.alpha = c.alpha;
  args.y = backend.Poisoned(DType::kF32, {c.rows, c.vocab});
  args.scratch = backend.Scratch(LinearScratchBytes(h.weight, c.rows, backend.stream()));
  Linear(args, backend.stream());
  return backend.Floats(args.y);
}

// Compares the op with a reference computed from the full rows of logits that Linear returns: the
// log-softmax in double, and a full sort for the top tokens.
void Check(const LogProbCase& c, TestBackend& backend) {
  INFO("rows " << c.rows << " vocab " << c.vocab << " k " << c.k << " top " << c.top << " type "
               << static_cast<int>(c.type));
  const Head h = MakeHead(c, backend);
  const std::vector<float> logits = Logits(c, h, backend);
  const Outputs out = Run(c, h, 0, c.rows, backend);
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* row = logits.data() + r * c.vocab;
    const double most = *std::max_element(row, row + c.vocab);
    double sum = 0;
    for (int64_t t = 0; t < c.vocab; ++t) sum += std::exp(row[t] - most);
    const double log_sum = most + std::log(sum);
    const auto close = [&](double got, double logit) {
      return std::fabs(got - (logit - log_sum)) <= 2e-6 * std::max(1.0, std::fabs(logit - log_sum));
    };
    const auto at = static_cast<size_t>(r);
    REQUIRE(close(out.log_probs[at], row[h.targets[at]]));
    std::vector<int32_t> order(static_cast<size_t>(c.vocab));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int64_t i = 0; i < c.top; ++i) {
      const auto slot = static_cast<size_t>(r * c.top + i);
      if (i >= c.vocab) {
        REQUIRE(out.top_tokens[slot] == -1);
        REQUIRE(out.top_log_probs[slot] == -std::numeric_limits<float>::infinity());
        continue;
      }
      const int32_t token = out.top_tokens[slot];
      REQUIRE((token >= 0 && token < c.vocab));
      // Tokens whose log-probabilities round to the same value are ordered by token id.
      const float expected = row[order[static_cast<size_t>(i)]];
      REQUIRE((token == order[static_cast<size_t>(i)] ||
               std::fabs(row[token] - expected) < 4e-6f * std::max(1.0f, std::fabs(expected))));
      REQUIRE(close(out.top_log_probs[slot], row[token]));
      if (i == 0) continue;
      const bool ordered = out.top_log_probs[slot - 1] > out.top_log_probs[slot] ||
                           (out.top_log_probs[slot - 1] == out.top_log_probs[slot] &&
                            out.top_tokens[slot - 1] < token);
      REQUIRE(ordered);
    }
  }
}

std::vector<WeightType> Types(TestBackend& backend) {
  std::vector<WeightType> types;
  for (WeightType type :
       {WeightType::kF32, WeightType::kI8, WeightType::kBF16, WeightType::kF16, WeightType::kF8}) {
    if (WeightTypeSupported(type, backend.device())) types.push_back(type);
  }
  return types;
}

TEST_CASE("log-probabilities of targets and alternatives equal the reference", "[log_prob]") {
  ForEachBackend([](TestBackend& backend) {
    for (WeightType type : Types(backend)) {
      for (int64_t vocab : Pick<int64_t>({1, 7, 63, 64, 65, 2500}, {65, 2500})) {
        for (int64_t top : Pick<int64_t>({0, 1, 5, 20}, {0, 5})) {
          LogProbCase c;
          c.rows = 1 + vocab % 60, c.vocab = vocab, c.k = 19, c.top = top, c.type = type;
          c.bias = top % 2 == 1, c.alpha = top == 5 ? 0.25f : 1.0f;
          Check(c, backend);
        }
      }
    }
  });
}

TEST_CASE("log-probabilities of more rows than one chunk equal the reference", "[log_prob]") {
  ForEachBackend([](TestBackend& backend) {
    LogProbCase c;
    c.rows = 1111, c.vocab = 300, c.k = 8, c.top = 3;
    Check(c, backend);
    const Head h = MakeHead(c, backend);
    CHECK(Run(c, h, 0, 0, backend).log_probs.empty());
    // The size of the scratch memory does not grow with the number of rows.
    CHECK(TargetLogProbScratchBytes(h.weight, 1000, 3, backend.stream()) ==
          TargetLogProbScratchBytes(h.weight, 100000, 3, backend.stream()));
  });
}

TEST_CASE("the log-probability of a row does not depend on other rows or threads", "[log_prob]") {
  std::map<std::pair<std::string, WeightType>, std::vector<float>> earlier;
  ForEachBackend([&](TestBackend& backend) {
    for (WeightType type : Types(backend)) {
      // On a GPU, only GEMMs with f32 weights give a row the same bits in every batch.
      if (backend.device() != nullptr && type != WeightType::kF32) continue;
      LogProbCase c;
      c.rows = 650, c.vocab = 5003, c.k = 33, c.top = 4, c.bias = true, c.type = type;
      const Head h = MakeHead(c, backend);
      const Outputs all = Run(c, h, 0, c.rows, backend);
      const auto [same_isa, first_time] = earlier.insert({{CpuIsaName(), type}, all.top_log_probs});
      if (!first_time) CHECK(same_isa->second == all.top_log_probs);
      for (int64_t row : {0, 47, 48, 191, 192, 511, 512, 649}) {
        INFO(CpuIsaName() << " weights " << static_cast<int>(type) << " row " << row);
        const Outputs alone = Run(c, h, row, 1, backend);
        const auto at = static_cast<size_t>(row);
        CHECK(alone.log_probs[0] == all.log_probs[at]);
        for (size_t i = 0; i < 4; ++i) {
          CHECK(alone.top_log_probs[i] == all.top_log_probs[at * 4 + i]);
          CHECK(alone.top_tokens[i] == all.top_tokens[at * 4 + i]);
        }
      }
    }
  });
}

TEST_CASE("ties are ordered by token id and -inf is last", "[log_prob]") {
  ForEachBackend([](TestBackend& backend) {
    LogProbCase c;
    c.rows = 1, c.vocab = 200, c.k = 2, c.top = 200, c.bias = true;
    Head h = MakeHead(c, backend);
    h.hidden.assign(h.hidden.size(), 0.0f);  // so the logits equal the bias
    for (size_t t = 0; t < h.bias.size(); ++t) {
      h.bias[t] = t < 150 ? static_cast<float>(t % 3) : -std::numeric_limits<float>::infinity();
    }
    h.targets[0] = 180;
    const Outputs out = Run(c, h, 0, 1, backend);
    CHECK(out.log_probs[0] == -std::numeric_limits<float>::infinity());
    for (int32_t i = 0; i < 150; ++i) {
      const int32_t expected = i < 50 ? 3 * i + 2 : i < 100 ? 3 * (i - 50) + 1 : 3 * (i - 100);
      REQUIRE(out.top_tokens[static_cast<size_t>(i)] == expected);
    }
    for (size_t i = 150; i < 200; ++i) {
      REQUIRE(out.top_tokens[i] == static_cast<int32_t>(i));
      REQUIRE(out.top_log_probs[i] == -std::numeric_limits<float>::infinity());
    }
  });
}

TEST_CASE("large logits do not overflow", "[log_prob]") {
  ForEachBackend([](TestBackend& backend) {
    LogProbCase c;
    c.rows = 3, c.vocab = 129, c.k = 4, c.alpha = 3000.0f;
    Check(c, backend);
  });
}

}  // namespace
}  // namespace quintet
