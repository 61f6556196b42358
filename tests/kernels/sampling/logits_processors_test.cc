#include "kernels/sampling/logits_processors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/sampling/never.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// Logits rows, each with random settings of the logits processors (RowRules), and sequences whose
// tokens are stored at cache slots in random order.
struct ProcessorProblem {
  int64_t vocab = 0, rows = 0;
  std::vector<float> logits, log_sums;
  std::vector<RowRules> rules;
  std::vector<int32_t> tokens;  // LogitsProcessorsArgs::tokens
  std::vector<std::vector<int32_t>> histories;
};

std::vector<int32_t> RandomIds(RandomData& random, int64_t count, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(vocab));
  return ids;
}

TokenRange Append(const std::vector<int32_t>& ids, std::vector<int32_t>* tokens) {
  const auto begin = static_cast<int32_t>(tokens->size());
  tokens->insert(tokens->end(), ids.begin(), ids.end());
  return {begin, static_cast<int32_t>(tokens->size())};
}

// Appends random bad words (token sequences that must not be generated) to `tokens`. About half of
// the words are changed so that `history`, the tokens of the sequence so far, ends with all tokens
// of the word except the last one: the bad-words rule must then ban that last token.
TokenRange AppendWords(RandomData& random, const std::vector<int32_t>& history, int64_t vocab,
                       std::vector<int32_t>* tokens) {
  std::vector<std::vector<int32_t>> words;
  for (int64_t i = random.Below(40); i > 0; --i) {
    std::vector<int32_t> word = RandomIds(random, 1 + random.Below(5), vocab);
    const int64_t tail = std::min<int64_t>(static_cast<int64_t>(word.size()) - 1,
                                           static_cast<int64_t>(history.size()));
    if (random.Below(2) == 0) std::copy(history.end() - tail, history.end(), word.end() - 1 - tail);
    words.push_back(word);
  }
  std::vector<int32_t> block(2 * words.size());
  for (size_t w = 0; w < words.size(); ++w) {
    block[2 * w] = static_cast<int32_t>(block.size());
    block.insert(block.end(), words[w].begin(), words[w].end());
    block[2 * w + 1] = static_cast<int32_t>(block.size());
  }
  TokenRange range = Append(block, tokens);
  range.end = range.begin + static_cast<int32_t>(2 * words.size());
  return range;
}

ProcessorProblem MakeProblem(int64_t vocab, int64_t rows, int64_t longest, uint32_t seed) {
  RandomData random(seed);
  ProcessorProblem p{.vocab = vocab, .rows = rows};
  p.logits = random.Values(rows * vocab, 6.0f);
  p.log_sums = random.Values(rows, 5.0f);
  for (int64_t s = 0; s < rows + 2; ++s) {
    p.histories.push_back(
        RandomIds(random, 1 + random.Below(longest), std::min<int64_t>(vocab, 20)));
  }
  for (int64_t row = rows - 1; row >= 0; --row) {
    if (random.Below(5) == 0) continue;
    RowRules r;
    r.row = static_cast<int32_t>(row);
    r.sequence = static_cast<int32_t>(random.Below(rows + 2));
    const auto& history = p.histories[static_cast<size_t>(r.sequence)];
    if (random.Below(3) == 0) r.keep = 1;
    if (random.Below(3) == 0) r.log_softmax = 1;
    if (random.Below(2) == 0) r.repetition_penalty = random.Below(2) == 0 ? 1.3f : 0.7f;
    if (random.Below(2) == 0) r.ngram = static_cast<int32_t>(1 + random.Below(4));
    if (random.Below(2) == 0) r.words = AppendWords(random, history, vocab, &p.tokens);
    if (random.Below(4) == 0) {
      r.forced = Append(RandomIds(random, 1 + random.Below(3), vocab), &p.tokens);
    }
    if (random.Below(2) == 0) {
      r.banned = Append(RandomIds(random, random.Below(600), vocab), &p.tokens);
    }
    p.rules.push_back(r);
  }
  return p;
}

// Reference: applies the logits processors (repetition penalty, bad words, ...) with the settings
// of one row to its logits, exactly as they are defined.
void ApplyPlainly(const ProcessorProblem& p, const RowRules& r, float* row) {
  const std::vector<int32_t>& history = p.histories[static_cast<size_t>(r.sequence)];
  const auto tokens = [&](const TokenRange& range) {
    return std::vector<int32_t>(p.tokens.begin() + range.begin, p.tokens.begin() + range.end);
  };
  if (r.log_softmax != 0) {
    for (int64_t i = 0; i < p.vocab; ++i) row[i] -= p.log_sums[static_cast<size_t>(r.row)];
  }
  if (r.repetition_penalty != 1.0f) {
    for (const int32_t t : std::set<int32_t>(history.begin(), history.end())) {
      row[t] = row[t] < 0.0f ? row[t] * r.repetition_penalty : row[t] / r.repetition_penalty;
    }
  }
  for (int32_t token = 0; token < p.vocab; ++token) {
    std::vector<int32_t> extended = history;
    extended.push_back(token);
    const auto n = static_cast<size_t>(r.ngram);
    bool banned = false;
    if (n > 0 && extended.size() > n) {
      const auto last = std::search(extended.begin(), extended.end() - 1, extended.end() - r.ngram,
                                    extended.end());
      banned = last != extended.end() - 1;
    }
    const std::vector<int32_t> pairs = tokens(r.words);
    for (size_t w = 0; w < pairs.size(); w += 2) {
      const std::vector<int32_t> word(p.tokens.begin() + r.words.begin + pairs[w],
                                      p.tokens.begin() + r.words.begin + pairs[w + 1]);
      if (word.size() > extended.size()) continue;
      banned = banned || std::equal(word.rbegin(), word.rend(), extended.rbegin());
    }
    if (banned) row[token] = kNever;
  }
  if (!r.forced.empty()) {
    std::fill_n(row, p.vocab, kNever);
    for (const int32_t t : tokens(r.forced)) row[t] = 0.0f;
  }
  for (const int32_t t : tokens(r.banned)) row[t] = kNever;
}

std::vector<float> Run(const ProcessorProblem& p, TestBackend& backend) {
  RandomData random(77);
  const auto sequences = static_cast<int64_t>(p.histories.size());
  int64_t stride = 0, total = 0;
  for (const auto& history : p.histories) {
    stride = std::max<int64_t>(stride, static_cast<int64_t>(history.size()));
    total += static_cast<int64_t>(history.size());
  }
  std::vector<int32_t> free_slots(static_cast<size_t>(total));
  for (size_t i = 0; i < free_slots.size(); ++i) free_slots[i] = static_cast<int32_t>(i);
  for (size_t i = free_slots.size(); i > 1; --i) {
    std::swap(free_slots[i - 1],
              free_slots[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
  }
  std::vector<int32_t> by_slot(free_slots.size()), lens;
  std::vector<int32_t> slots(static_cast<size_t>(sequences * stride), -1);
  for (size_t s = 0; s < p.histories.size(); ++s) {
    lens.push_back(static_cast<int32_t>(p.histories[s].size()));
    for (size_t i = 0; i < p.histories[s].size(); ++i) {
      const int32_t slot = free_slots.back();
      free_slots.pop_back();
      slots[s * static_cast<size_t>(stride) + i] = slot;
      by_slot[static_cast<size_t>(slot)] = p.histories[s][i];
    }
  }
  LogitsProcessorsArgs args;
  args.logits = backend.Put(p.logits, {p.rows, p.vocab});
  args.rules = backend.Plan(p.rules);
  args.tokens = backend.Plan(p.tokens);
  args.history.tokens = backend.PutBytes(by_slot.data(), total * 4, DType::kI32, {total});
  args.history.slots = backend.Plan(slots).data();
  args.history.slots_stride = stride;
  args.history.lens = backend.Plan(lens);
  args.log_sums = backend.Put(p.log_sums, {p.rows});
  args.scratch = backend.Scratch(LogitsProcessorsScratchBytes(p.vocab, backend.stream()));
  args.raw_logits = backend.Put(std::vector<float>(p.logits.size(), -7.0f), {p.rows, p.vocab});
  ApplyLogitsProcessors(args, backend.stream());
  std::vector<float> kept(p.logits.size(), -7.0f);
  for (const RowRules& r : p.rules) {
    if (r.keep != 0)
      std::copy_n(p.logits.begin() + r.row * p.vocab, p.vocab, kept.begin() + r.row * p.vocab);
  }
  CHECK(backend.Floats(args.raw_logits) == kept);
  return backend.Floats(args.logits);
}

void CheckProblem(const ProcessorProblem& p) {
  std::vector<float> expected = p.logits;
  for (const RowRules& r : p.rules) ApplyPlainly(p, r, expected.data() + r.row * p.vocab);
  ForEachBackend([&](TestBackend& backend) { CHECK(Run(p, backend) == expected); });
}

TEST_CASE("logit rules equal their definitions", "[logits_processors]") {
  uint32_t seed = 1;
  for (const int64_t vocab : {20, 33, 512, 1031}) {
    for (int trial = 0; trial < 10; ++trial) CheckProblem(MakeProblem(vocab, 9, 40, seed++));
  }
}

TEST_CASE("logit rules equal their definitions with long histories", "[logits_processors]") {
  for (uint32_t seed = 100; seed < 103; ++seed) CheckProblem(MakeProblem(300, 4, 5000, seed));
}

TEST_CASE("logit rules equal their definitions for T5's vocabulary and a row without rules",
          "[logits_processors]") {
  ProcessorProblem p = MakeProblem(32128, 2, 300, 200);
  p.rules = {{.row = 1, .sequence = 2, .repetition_penalty = 1.2f, .ngram = 1}};
  CheckProblem(p);
}

TEST_CASE("logit rules equal their definitions for a vocabulary whose bitmap fills shared memory",
          "[logits_processors]") {
  ProcessorProblem p = MakeProblem(500000, 1, 300, 201);
  p.rules = {{.row = 0, .sequence = 1, .repetition_penalty = 1.2f}};
  CheckProblem(p);
}

}  // namespace
}  // namespace quintet
