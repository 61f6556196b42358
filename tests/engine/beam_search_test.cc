#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <span>

#include "tests/catch.h"
#include "tests/engine/reference_search.h"

namespace quintet {
namespace {

// A random language model: logits are drawn once for every history, without ties.
class RandomLanguage {
 public:
  RandomLanguage(int seed, int64_t vocab, float eos_bonus, std::vector<int32_t> eos)
      : random_(seed), vocab_(vocab), eos_bonus_(eos_bonus), eos_(std::move(eos)) {}

  const std::vector<float>& Logits(const std::vector<int32_t>& history) {
    std::vector<float>& row = rows_[history];
    if (row.empty()) {
      std::normal_distribution<float> normal(0.0f, 2.0f);
      for (int64_t v = 0; v < vocab_; ++v) row.push_back(normal(random_));
      for (int32_t e : eos_) row[e] += eos_bonus_;
    }
    return row;
  }

 private:
  std::mt19937 random_;
  int64_t vocab_;
  float eos_bonus_;
  std::vector<int32_t> eos_;
  std::map<std::vector<int32_t>, std::vector<float>> rows_;
};

// Returns the longest common prefix of all sequences of a search, without the prompt. The sequences
// are the running beams, whose tokens are in `histories`, and the finished sequences.
std::vector<int32_t> CommonBeginning(const BeamSearch& search, size_t prompt,
                                     const std::vector<std::vector<int32_t>>& histories) {
  std::vector<int32_t> common(histories[0].begin() + prompt, histories[0].end());
  const auto cut = [&common](auto begin, auto end) {
    common.erase(std::mismatch(common.begin(), common.end(), begin, end).first, common.end());
  };
  for (const auto& history : histories) cut(history.begin() + prompt, history.end());
  for (const auto& finished : search.Finished()) {
    cut(finished.tokens.begin(), finished.tokens.end());
  }
  return common;
}

// Runs the BeamSearch under test to its end. In place of the engine, this function ranks the
// candidates (with a full sort) and keeps the whole history of each beam.
std::vector<BeamHypothesis> RunSearch(const DecodingOptions& options, RandomLanguage* language) {
  BeamSearch search(options);
  std::vector<std::vector<int32_t>> histories(search.beams(), options.prompt);
  std::vector<int32_t> known;
  bool exact = true;
  for (bool first = true, going = true; going; first = false) {
    std::vector<BeamCandidate> ranked;
    for (int32_t beam = 0; beam < (first ? 1 : search.beams()); ++beam) {
      const std::vector<float> row = ReferenceProcess(
          options, histories[beam], ReferenceLogSoftmax(language->Logits(histories[beam])));
      for (size_t v = 0; v < row.size(); ++v) {
        ranked.push_back({row[v] + search.scores()[beam], beam, static_cast<int32_t>(v), row[v]});
      }
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.score > b.score; });
    if (static_cast<int32_t>(ranked.size()) > search.candidates()) {
      ranked.resize(search.candidates());
    }
    if (first) {
      // In the first step only beam 0 exists. If its row has fewer possible tokens than the search
      // needs candidates, further beams start as copies of beam 0. The search treats copies as
      // different beams; the common prefix that it returns may therefore be shorter than the exact
      // one.
      exact = std::count_if(ranked.begin(), ranked.end(), [](const auto& c) {
                return std::isfinite(c.score);
              }) >= search.candidates();
      search.CompleteFirst(&ranked);
    }
    std::vector<Hit> hits;
    for (const BeamCandidate& c : ranked) {
      const auto& eos = options.eos_token_ids;
      const bool ends = std::find(eos.begin(), eos.end(), c.token) != eos.end();
      const bool longest = search.new_tokens() + 1 >= options.max_new_tokens;
      hits.push_back(ends ? Hit::kEos : longest ? Hit::kLength : Hit::kNone);
    }
    going = search.Step(ranked, hits);
    std::vector<std::vector<int32_t>> next;
    for (int32_t beam = 0; beam < search.beams(); ++beam) {
      next.push_back(histories[search.parents()[beam]]);
      next.back().push_back(search.tokens()[beam]);
    }
    histories = std::move(next);
    const int64_t common = search.CommonLength(static_cast<int64_t>(known.size()));
    REQUIRE(common >= static_cast<int64_t>(known.size()));
    if (going) {
      known = CommonBeginning(search, options.prompt.size(), histories);
      REQUIRE(common <= static_cast<int64_t>(known.size()));
      REQUIRE((!exact || common == static_cast<int64_t>(known.size())));
      known.resize(common);
    }
  }
  for (const BeamHypothesis& h : search.Finished()) {
    REQUIRE(std::equal(known.begin(), known.end(), h.tokens.begin()));
  }
  return search.Finished();
}

void Compare(const DecodingOptions& options, RandomLanguage* language) {
  const std::vector<BeamHypothesis> got = RunSearch(options, language);
  const auto expected = ReferenceBeams(
      options, [language](const std::vector<int32_t>& h) { return language->Logits(h); });
  REQUIRE(got.size() >= expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(got[i].tokens == expected[i].tokens);
    REQUIRE(got[i].score == expected[i].score);
    REQUIRE(got[i].log_probs.size() == got[i].tokens.size());
    const auto& eos = options.eos_token_ids;
    const bool ends = std::find(eos.begin(), eos.end(), got[i].tokens.back()) != eos.end();
    REQUIRE((got[i].hit == Hit::kEos) == ends);
  }
}

TEST_CASE("beam search equals the plain reference on random languages") {
  std::mt19937 random(11);
  int ended_early = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    DecodingOptions options;
    options.prompt.assign(1 + random() % 3, 0);
    options.max_new_tokens = 1 + random() % 10;
    options.num_beams = 2 + random() % 7;
    options.num_return_sequences = options.num_beams;
    options.eos_token_ids = {1};
    if (random() % 3 == 0) options.eos_token_ids = {1, 3, 5};
    if (random() % 8 == 0) options.eos_token_ids.clear();
    const double penalties[] = {1.0, 0.0, -1.0, 0.6, 1.5, 2.0};
    options.length_penalty = penalties[random() % 6];
    options.early_stopping = static_cast<EarlyStopping>(random() % 3);
    if (options.early_stopping == EarlyStopping::kFirst && random() % 3 == 0) {
      options.patience = 0.5 + random() % 4 * 0.5;
      options.num_return_sequences = 1;
    }
    if (random() % 4 == 0) options.min_new_tokens = random() % (options.max_new_tokens + 1);
    const int64_t vocab = random() % 4 == 0 ? 7 : 30;
    const float bonus = static_cast<float>(random() % 5);
    RandomLanguage language(trial, vocab, bonus, options.eos_token_ids);
    INFO("trial " << trial << " beams " << options.num_beams << " vocab " << vocab);
    Compare(options, &language);
    const auto finished = RunSearch(options, &language);
    ended_early += static_cast<int64_t>(finished[0].tokens.size()) < options.max_new_tokens;
  }
  CHECK(ended_early > 300);
}

TEST_CASE(
    "beam search equals the reference with fewer tokens than candidates and a forced first token") {
  for (int trial = 0; trial < 200; ++trial) {
    DecodingOptions options;
    options.prompt = {0};
    options.max_new_tokens = 4;
    options.num_beams = options.num_return_sequences = 4 + trial % 5;
    options.eos_token_ids = {1};
    if (trial % 2 == 0) options.forced_bos_token_id = 2;
    RandomLanguage language(trial, 4, -1.0f, options.eos_token_ids);
    const auto got = RunSearch(options, &language);
    const auto expected = ReferenceBeams(
        options, [&language](const std::vector<int32_t>& h) { return language.Logits(h); });
    for (size_t i = 0; i < expected.size(); ++i) {
      REQUIRE(got.at(i).tokens == expected[i].tokens);
      REQUIRE(got.at(i).score == expected[i].score);
    }
  }
}

// If fewer sequences are possible than were requested, transformers fills the remaining rows of its
// result with copies that continue ended or dead beams, whose scores are -1e9 /
// length^length_penalty. Quintet returns only the possible sequences.
TEST_CASE("beams that no sequence can fill are dropped") {
  using Sequences = std::set<std::vector<int32_t>>;
  const struct {
    std::vector<int32_t> allowed;  // 1 is the eos
    int32_t max_new_tokens;
    Sequences expected;
  } cases[] = {
      {{1}, 5, {{1}}},
      {{2}, 1, {{2}}},
      {{2}, 3, {{2, 2, 2}}},
      {{1, 2}, 1, {{1}, {2}}},
      {{1, 2}, 2, {{1}, {2, 1}, {2, 2}}},
      {{2, 3}, 1, {{2}, {3}}},
      {{1, 2}, 3, {{1}, {2, 1}, {2, 2, 1}, {2, 2, 2}}},
  };
  for (const auto& one : cases) {
    for (const EarlyStopping early :
         {EarlyStopping::kHeuristic, EarlyStopping::kFirst, EarlyStopping::kNever}) {
      for (const double penalty : {1.0, 0.0, -1.0, 2.0}) {
        DecodingOptions options;
        options.prompt = {0};
        options.max_new_tokens = one.max_new_tokens;
        options.num_beams = options.num_return_sequences = 4;
        options.eos_token_ids = {1};
        options.early_stopping = early;
        options.length_penalty = penalty;
        for (int32_t token = 0; token < 30; ++token) {
          const auto& allowed = one.allowed;
          if (std::find(allowed.begin(), allowed.end(), token) == allowed.end()) {
            options.suppress_tokens.push_back(token);
          }
        }
        RandomLanguage language(5, 30, 0.0f, options.eos_token_ids);
        INFO(one.allowed.size() << " tokens, length " << one.max_new_tokens << ", early stopping "
                                << static_cast<int>(early) << ", penalty " << penalty);
        const auto got = RunSearch(options, &language);
        Compare(options, &language);
        Sequences sequences;
        for (const BeamHypothesis& h : got) {
          CHECK(h.score > -1e4f);
          CHECK(one.expected.count(h.tokens) == 1);
          sequences.insert(h.tokens);
        }
        CHECK(sequences.size() == got.size());
        CHECK(!got.empty());
        // All possible sequences must be found if the search never stops early and the length
        // penalty is 1. Otherwise it may find only some of them, as in transformers.
        if (early == EarlyStopping::kNever && penalty == 1.0) CHECK(sequences == one.expected);
      }
    }
  }
}

TEST_CASE("if no token is possible, one sequence is returned") {
  DecodingOptions options;
  options.prompt = {0};
  options.max_new_tokens = 3;
  options.num_beams = options.num_return_sequences = 4;
  options.eos_token_ids = {1};
  for (int32_t token = 0; token < 7; ++token) options.suppress_tokens.push_back(token);
  RandomLanguage language(5, 7, 0.0f, options.eos_token_ids);
  CHECK(RunSearch(options, &language).size() <= 1);
}

TEST_CASE("an eos is kept only if it ranks among the first num_beams candidates") {
  DecodingOptions options;
  options.prompt = {0};
  options.max_new_tokens = 5;
  options.num_beams = 2;
  options.eos_token_ids = {1};
  BeamSearch search(options);
  // Ranks count from 0, and the search has two beams. The candidates of ranks 0 and 1 continue
  // them. The candidate with the eos token has rank 2, so the sequence that it would finish is
  // dropped.
  const std::vector<BeamCandidate> ranked{
      {-1.0f, 0, 5, 0}, {-2.0f, 0, 6, 0}, {-3.0f, 0, 1, 0}, {-4.0f, 0, 7, 0}};
  CHECK(search.Step(ranked, std::vector<Hit>{Hit::kNone, Hit::kNone, Hit::kEos, Hit::kNone}));
  CHECK(search.Finished().empty());
  CHECK(std::ranges::equal(search.tokens(), std::vector<int32_t>{5, 6}));
  // Here the candidate with the eos token has rank 1 (ranks count from 0), and the search has two
  // beams: the sequence that the candidate finishes is kept. The candidate of rank 2 continues a
  // beam in its place.
  CHECK(search.Step(ranked, std::vector<Hit>{Hit::kNone, Hit::kEos, Hit::kNone, Hit::kNone}));
  REQUIRE(search.Finished().size() == 1);
  CHECK(search.Finished()[0].tokens == std::vector<int32_t>{5, 6});
  CHECK(search.Finished()[0].score == -1.0f);  // -2 / 2
  CHECK(std::ranges::equal(search.tokens(), std::vector<int32_t>{5, 1}));
}

TEST_CASE("several eos ids widen the candidates") {
  DecodingOptions options;
  options.num_beams = 3;
  CHECK(BeamSearch(options).candidates() == 6);
  options.eos_token_ids = {1};
  CHECK(BeamSearch(options).candidates() == 6);
  options.eos_token_ids = {1, 2, 3};
  CHECK(BeamSearch(options).candidates() == 12);
}

}  // namespace
}  // namespace quintet
