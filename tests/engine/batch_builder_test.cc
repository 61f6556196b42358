#include "engine/batch_builder.h"

#include <algorithm>
#include <random>

#include "tests/catch.h"

namespace quintet {
namespace {

// A request in a randomly generated decoder step. Each of its sequences has one new token and one
// list of KV cache slots.
struct TestGroup {
  uint64_t owner;
  std::vector<int32_t> source_slots;
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> slots;  // [sequences]
};

std::vector<int32_t> RandomIds(std::mt19937* random, size_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>((*random)() % 1000);
  return ids;
}

std::vector<TestGroup> RandomGroups(std::mt19937* random, size_t count, bool with_sources) {
  std::vector<TestGroup> groups(count);
  for (size_t g = 0; g < count; ++g) {
    groups[g].owner = (*random)();
    if (with_sources) groups[g].source_slots = RandomIds(random, 1 + (*random)() % 9);
    groups[g].tokens = RandomIds(random, 1 + (*random)() % 4);
    for (size_t s = 0; s < groups[g].tokens.size(); ++s) {
      groups[g].slots.push_back(RandomIds(random, 1 + (*random)() % 20));
    }
  }
  return groups;
}

// Copies of the arrays of a batch, without the unused ends of matrix rows.
std::vector<std::vector<int32_t>> ArraysOf(const DecodeBatch& batch) {
  std::vector<std::vector<int32_t>> arrays;
  for (const auto& span : {batch.tokens, batch.offsets, batch.kv_lens, batch.group_offsets,
                           batch.source_lens, batch.output_rows}) {
    arrays.emplace_back(span.begin(), span.end());
  }
  for (size_t s = 0; s < batch.kv_lens.size(); ++s) {
    const int32_t* const row = batch.slots + static_cast<int64_t>(s) * batch.slots_stride;
    arrays.emplace_back(row, row + batch.kv_lens[s]);
  }
  for (size_t g = 0; g < batch.source_lens.size(); ++g) {
    const int32_t* const row =
        batch.source_slots + static_cast<int64_t>(g) * batch.source_slots_stride;
    arrays.emplace_back(row, row + batch.source_lens[g]);
  }
  return arrays;
}

TEST_CASE("batch builder: setting sequences in any order gives the batch that adding them gives") {
  ThreadPool pool(3);
  const ModelLimits limits{.max_step_tokens = 512, .max_step_sequences = 256};
  BatchBuilder added(limits, &pool), set(limits, &pool);
  std::mt19937 random(7);
  for (int step = 0; step < 200; ++step) {
    const bool with_sources = random() % 2 == 0;
    const std::vector<TestGroup> groups = RandomGroups(&random, 1 + random() % 60, with_sources);

    added.Clear();
    std::vector<int64_t> ends;
    for (const TestGroup& group : groups) {
      added.BeginGroup(group.owner, group.source_slots);
      for (size_t s = 0; s < group.tokens.size(); ++s) {
        added.AddSequence({&group.tokens[s], 1}, group.slots[s]);
        added.OutputLast(1);
      }
      ends.push_back(added.sequences());
    }

    set.Resize(added.sequences(), with_sources ? static_cast<int64_t>(groups.size()) : 0, 0);
    std::vector<size_t> order(groups.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t g : order) {
      const TestGroup& group = groups[g];
      if (with_sources) {
        set.SetGroup(static_cast<int64_t>(g), ends[g], group.owner, group.source_slots);
      }
      const int64_t begin = ends[g] - static_cast<int64_t>(group.tokens.size());
      for (size_t s = 0; s < group.tokens.size(); ++s) {
        set.SetSequence(begin + static_cast<int64_t>(s), group.tokens[s], group.slots[s]);
      }
    }
    REQUIRE(set.outputs() == added.outputs());
    REQUIRE(ArraysOf(set.Finish()) == ArraysOf(added.Finish()));
  }
}

TEST_CASE("batch builder: moves belong to one batch only") {
  ThreadPool pool(1);
  BatchBuilder batch({.max_step_tokens = 8, .max_step_sequences = 8}, &pool);
  const std::vector<int32_t> slots = {3, 4};
  batch.Resize(2, 0, 1);
  batch.SetMove(0, {.sequence = 0, .beams = 2, .row = 5});
  for (const int64_t s : {0, 1}) batch.SetSequence(s, -1, slots);
  const DecodeBatch first = batch.Finish();
  REQUIRE(first.moves.size() == 1);
  REQUIRE(first.moves[0].row == 5);
  batch.Resize(1, 0, 0);
  batch.SetSequence(0, 9, slots);
  const DecodeBatch second = batch.Finish();
  REQUIRE(second.moves.empty());
  REQUIRE(std::ranges::equal(second.tokens, std::vector<int32_t>{9}));
  REQUIRE(second.group_offsets.empty());
}

}  // namespace
}  // namespace quintet
