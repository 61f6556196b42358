#include "engine/logits_processors.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/runtime/stream.h"
#include "kernels/runtime/thread_pool.h"
#include "tests/catch.h"
#include "tests/engine/reference_search.h"

namespace quintet {
namespace {

constexpr int64_t kVocab = 12;
constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<float> Apply(const DecodingOptions& options, std::vector<int32_t> history,
                         std::vector<float> row) {
  const LogitsProcessors processors(options);
  // The token array also holds tokens of another request, in front of the tested request's.
  std::vector<int32_t> tokens{5, 5, 5};
  const auto base = static_cast<int32_t>(tokens.size());
  tokens.insert(tokens.end(), processors.tokens().begin(), processors.tokens().end());
  const RowRules rules = processors.RulesAt(static_cast<int64_t>(history.size()), base);
  const auto vocab = static_cast<int64_t>(row.size()),
             length = static_cast<int64_t>(history.size());
  std::vector<int32_t> slots(history.size());
  std::iota(slots.begin(), slots.end(), 0);
  const auto lens = static_cast<int32_t>(length);
  ThreadPool pool(1);
  Stream stream(&pool);
  std::vector<uint64_t> scratch(LogitsProcessorsScratchBytes(vocab, stream) / 8);
  ApplyLogitsProcessors({.logits = Tensor::F32(row.data(), {1, vocab}),
                         .rules = {&rules, 1},
                         .tokens = tokens,
                         .history = {Tensor::Dense(history.data(), DType::kI32, {length}),
                                     slots.data(),
                                     length,
                                     {&lens, 1}},
                         .scratch = Tensor::Dense(scratch.data(), DType::kI8,
                                                  {static_cast<int64_t>(scratch.size() * 8)})},
                        stream);
  return row;
}

DecodingOptions Base() {
  DecodingOptions options;
  options.prompt = {0};
  options.eos_token_ids = {1};
  options.max_new_tokens = 6;
  return options;
}

const std::vector<float> kRow{0.5f, -1.0f, 2.0f, -3.0f};

TEST_CASE("repetition penalty divides positive and multiplies negative logits, once per token") {
  DecodingOptions options = Base();
  options.repetition_penalty = 2.0f;
  CHECK(Apply(options, {2, 3, 2, 3, 3}, kRow) == std::vector<float>{0.5f, -1.0f, 1.0f, -6.0f});
}

TEST_CASE("no_repeat_ngram_size bans tokens that would repeat an n-gram") {
  DecodingOptions options = Base();
  options.no_repeat_ngram_size = 2;
  CHECK(Apply(options, {2, 3, 0, 2}, kRow) == std::vector<float>{0.5f, -1.0f, 2.0f, kNever});
  CHECK(Apply(options, {2}, kRow) == kRow);
  CHECK(Apply(options, {2, 2}, kRow) == std::vector<float>{0.5f, -1.0f, kNever, -3.0f});
  options.no_repeat_ngram_size = 1;
  CHECK(Apply(options, {0, 2}, kRow) == std::vector<float>{kNever, -1.0f, kNever, -3.0f});
}

TEST_CASE(
    "bad words: the last token is banned after the tokens before it; a single eos is never "
    "banned") {
  DecodingOptions options = Base();
  options.bad_words_ids = {{3}, {0, 2}, {1}, {2, 0, 0}};
  CHECK(Apply(options, {3}, kRow) == std::vector<float>{0.5f, -1.0f, 2.0f, kNever});
  CHECK(Apply(options, {3, 0}, kRow) == std::vector<float>{0.5f, -1.0f, kNever, kNever});
  CHECK(Apply(options, {2, 0}, kRow) == std::vector<float>{kNever, -1.0f, kNever, kNever});
}

TEST_CASE("min_new_tokens counts from the prompt's end") {
  DecodingOptions options = Base();
  options.prompt = {0, 2};
  options.min_new_tokens = 2;
  CHECK(Apply(options, {0, 2, 3}, kRow) == std::vector<float>{0.5f, kNever, 2.0f, -3.0f});
  CHECK(Apply(options, {0, 2, 3, 3}, kRow) == kRow);
}

TEST_CASE("forced bos and eos apply at their positions only") {
  DecodingOptions options = Base();
  options.forced_bos_token_id = 3;
  options.forced_eos_token_ids = {1, 2};
  CHECK(Apply(options, {0}, kRow) == std::vector<float>{kNever, kNever, kNever, 0.0f});
  CHECK(Apply(options, {0, 3}, kRow) == kRow);
  CHECK(Apply(options, {0, 3, 3, 3, 3, 3}, kRow) == std::vector<float>{kNever, 0.0f, 0.0f, kNever});
}

TEST_CASE("begin_suppress_tokens applies to the first token that is not forced") {
  DecodingOptions options = Base();
  options.suppress_tokens = {0};
  options.begin_suppress_tokens = {2};
  CHECK(Apply(options, {0}, kRow) == std::vector<float>{kNever, -1.0f, kNever, -3.0f});
  CHECK(Apply(options, {0, 3}, kRow) == std::vector<float>{kNever, -1.0f, 2.0f, -3.0f});
  options.forced_bos_token_id = 3;  // then that is the second token
  CHECK(Apply(options, {0}, kRow) == std::vector<float>{kNever, kNever, kNever, 0.0f});
  CHECK(Apply(options, {0, 3}, kRow) == std::vector<float>{kNever, -1.0f, kNever, -3.0f});
}

std::vector<int32_t> RandomIds(std::mt19937* random, int count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>((*random)() % kVocab);
  return ids;
}

DecodingOptions RandomOptions(std::mt19937* random) {
  const auto chance = [random] { return (*random)() % 3 == 0; };
  DecodingOptions options = Base();
  options.prompt = RandomIds(random, 1 + (*random)() % 3);
  if (chance()) options.eos_token_ids = {1, 2};
  if (chance()) options.repetition_penalty = chance() ? 0.5f : 1.7f;
  if (chance()) options.no_repeat_ngram_size = 1 + (*random)() % 4;
  if (chance()) options.bad_words_ids = {RandomIds(random, 1), RandomIds(random, 2), {1}, {2}};
  if (chance()) options.min_new_tokens = (*random)() % 6;
  if (chance()) options.forced_bos_token_id = 4;
  if (chance()) options.forced_eos_token_ids = RandomIds(random, 2);
  if (chance()) options.suppress_tokens = RandomIds(random, 3);
  if (chance()) options.begin_suppress_tokens = RandomIds(random, 3);
  return options;
}

TEST_CASE(
    "all processors together equal the plain definitions; Acts is true exactly when they change "
    "logits") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  int acted = 0, idle = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const DecodingOptions options = RandomOptions(&random);
    std::vector<int32_t> history = options.prompt;
    const std::vector<int32_t> more = RandomIds(&random, random() % options.max_new_tokens);
    history.insert(history.end(), more.begin(), more.end());
    std::vector<float> row(kVocab);
    for (float& x : row) x = normal(random);
    const std::vector<float> expected = ReferenceProcess(options, history, row);
    REQUIRE(Apply(options, history, row) == expected);
    const bool acts = LogitsProcessors(options).Acts(static_cast<int64_t>(history.size()));
    if (!acts) REQUIRE(expected == row);
    ++(acts ? acted : idle);
  }
  CHECK(acted > 1000);
  CHECK(idle > 100);
}

}  // namespace
}  // namespace quintet
