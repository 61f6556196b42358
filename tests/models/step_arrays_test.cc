#include "models/step_arrays.h"

#include <algorithm>
#include <span>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

using Ints = std::vector<int32_t>;

Ints Copied(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

TEST_CASE("StepShape: Rounded is at least as large, within the limits, a third padding at most") {
  const ModelLimits limits = {.max_step_tokens = 300, .max_step_sequences = 300};
  for (int64_t n = 1; n <= 300; ++n) {
    INFO(n);
    const StepShape shape = {.rows = n, .sequences = n, .output_rows = n, .slots_stride = 7 * n};
    const StepShape rounded = shape.Rounded(limits);
    CHECK(rounded.rows >= n);
    CHECK(rounded.rows <= 300);
    if (n > 16) CHECK(3 * (rounded.rows - n) <= rounded.rows);
    CHECK(rounded.sequences == rounded.rows);
    CHECK(rounded.output_rows == rounded.rows);
    CHECK(rounded.slots_stride >= shape.slots_stride);
    CHECK(rounded.groups == 0);
    CHECK(rounded.Rounded(limits) == rounded);
    const StepShape strides = shape.RoundedStrides();
    CHECK(strides.rows == n);
    CHECK(strides.slots_stride == rounded.slots_stride);
  }
}

TEST_CASE("StepShape: Rounded gives few shapes") {
  const ModelLimits limits = {.max_step_tokens = 256, .max_step_sequences = 256};
  std::vector<StepShape> shapes;
  for (int64_t n = 1; n <= 256; ++n) {
    for (int64_t groups = 1; groups <= n; ++groups) {
      const StepShape shape = {.rows = n, .sequences = n, .groups = groups, .output_rows = n};
      shapes.push_back(shape.Rounded(limits));
      CHECK(shapes.back().groups >= groups);
    }
  }
  std::sort(shapes.begin(), shapes.end());
  CHECK(std::unique(shapes.begin(), shapes.end()) - shapes.begin() <= 26);
}

// A decoder batch of two groups (sequences that share a source): sequences 0 and 1 with one new
// token each, and sequence 2 with two new tokens.
struct Batch {
  Ints tokens = {5, 6, 7, 8}, offsets = {0, 1, 2, 4}, kv_lens = {3, 3, 2};
  Ints slots = {10, 11, 12, 10, 11, 13, 20, 21, -1};
  Ints group_offsets = {0, 2, 3}, source_lens = {2, 1}, source_slots = {30, 31, 40, -1};
  Ints wanted = {1, 3};

  DecodeBatch View() const {
    return {.tokens = tokens,
            .offsets = offsets,
            .kv_lens = kv_lens,
            .slots = slots.data(),
            .slots_stride = 3,
            .group_offsets = group_offsets,
            .source_slots = source_slots.data(),
            .source_slots_stride = 2,
            .source_lens = source_lens,
            .output_rows = wanted};
  }
};

TEST_CASE("StepArrays: of sequences that share the slot of their new token, one stores it") {
  ThreadPool pool(1);
  const Stream stream(&pool);
  StepArrays step(&stream);
  const std::vector<int32_t> tokens = {5, 5, 5, 6}, offsets = {0, 1, 2, 3, 4},
                             kv_lens = {1, 1, 1, 1}, slots = {8, 8, 8, 9};
  const DecodeBatch batch{.tokens = tokens,
                          .offsets = offsets,
                          .kv_lens = kv_lens,
                          .slots = slots.data(),
                          .slots_stride = 1,
                          .output_rows = {}};
  step.Fill(batch, StepShape::Of(batch), 16);
  CHECK(Copied(step.new_slots()) == Ints{8, -1, -1, 9});
}

TEST_CASE("StepArrays: Fill computes positions and slots, and pads inertly") {
  ThreadPool pool(1);
  const Stream stream(&pool);
  StepArrays step(&stream);
  const Batch batch;
  StepShape shape = StepShape::Of(batch.View());
  CHECK(shape.rows == 4);
  CHECK(shape.sequences == 3);
  CHECK(shape.groups == 2);
  CHECK(shape.group_rows == 2);
  CHECK_FALSE(shape.single());
  shape.rows = 6;
  shape.sequences = 5;
  shape.groups = 3;
  shape.output_rows = 4;
  shape.slots_stride = 8;
  shape.source_stride = 4;
  step.Fill(batch.View(), shape, 64);

  const DecodeBatch& filled = step.batch();
  CHECK(Copied(filled.tokens) == Ints{5, 6, 7, 8, 0, 0});
  CHECK(Copied({step.positions().as<int32_t>(), 6}) == Ints{2, 2, 0, 1, 0, 0});
  CHECK(Copied(step.new_slots()) == Ints{12, 13, 20, 21, -1, -1});
  CHECK(Copied(filled.offsets) == Ints{0, 1, 2, 4, 4, 4});
  CHECK(Copied(filled.kv_lens) == Ints{3, 3, 2, 0, 0});
  CHECK(Copied(filled.output_rows) == Ints{1, 3, 0, 0});
  CHECK(Copied({filled.slots + 8, 3}) == Ints{10, 11, 13});
  CHECK(Copied(filled.group_offsets) == Ints{0, 2, 3, 3});
  CHECK(Copied(step.group_offsets()) == Ints{0, 2, 4, 4});
  CHECK(Copied(filled.source_lens) == Ints{2, 1, 0});
  CHECK(Copied({filled.source_slots, 2}) == Ints{30, 31});
  CHECK(filled.source_slots[4] == 40);

  // If the next batch has the same shape, every array keeps its address, as captured CUDA graphs
  // require.
  const int32_t* slots = filled.slots;
  const void* block = step.block();
  step.Fill(batch.View(), shape, 64);
  CHECK(step.batch().slots == slots);
  CHECK(step.block() == block);
}

TEST_CASE("StepArrays: PlanForCapture sets the largest lengths of the shape") {
  ThreadPool pool(1);
  const Stream stream(&pool);
  StepArrays step(&stream);
  const Batch batch;
  const StepShape shape = StepShape::Of(batch.View());
  step.Fill(batch.View(), shape, 64);
  step.PlanForCapture(/*same_offsets=*/true);
  CHECK(Copied(step.batch().offsets) == batch.offsets);
  CHECK(Copied(step.batch().kv_lens) == Ints{3, 3, 3});
  CHECK(Copied(step.batch().source_lens) == Ints{2, 2});
  step.PlanForCapture(/*same_offsets=*/false);
  CHECK(Copied(step.batch().offsets) == Ints{0, 1, 2, 3});
  CHECK(Copied(step.group_offsets()) == Ints{0, 2, 4});
}

}  // namespace
}  // namespace quintet
