#include "models/step_arrays.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "kernels/base/carver.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/parallel_blocks.h"

namespace quintet {
namespace {

// Addresses of the index arrays in a block of memory that begins at `base` and is large enough for
// shape `s`. `base` may be null to compute only `bytes`, the size of the block; the addresses are
// then meaningless.
struct BlockLayout {
  int32_t *tokens, *positions, *new_slots, *offsets, *kv_lens, *output_rows, *group_offsets,
      *group_rows, *source_lens, *row_adapters, *slots, *source_slots;
  BeamMove* moves;
  int64_t bytes;

  BlockLayout(void* base, const StepShape& s) {
    Carver carver(base);
    const auto take = [&](int64_t n) { return static_cast<int32_t*>(carver.Take(n * 4)); };
    tokens = take(s.rows);
    positions = take(s.rows);
    new_slots = take(s.rows);
    offsets = take(s.sequences + 1);
    kv_lens = take(s.sequences);
    output_rows = take(s.output_rows);
    group_offsets = take(s.groups + 1);
    group_rows = take(s.groups + 1);
    source_lens = take(s.groups);
    row_adapters = take(s.adapters ? s.rows : 0);
    moves = static_cast<BeamMove*>(carver.Take(s.sequences * int64_t{sizeof(BeamMove)}));
    slots = take(s.sequences * s.slots_stride);
    source_slots = take(s.groups * s.source_stride);
    bytes = carver.used_bytes();
  }
};

// Copies `from` to `to` and pads it with `filler` to `length` elements.
std::span<int32_t> CopyPadded(std::span<const int32_t> from, int64_t length, int32_t filler,
                              int32_t* to) {
  QT_CHECK_LE(static_cast<int64_t>(from.size()), length);
  std::fill(std::copy(from.begin(), from.end(), to), to + length, filler);
  return {to, static_cast<size_t>(length)};
}

// Copies the first lens[i] entries of row i of table `from` to row i of table `to`, for all i. The
// tables have different row strides (in entries).
void CopyTable(const int32_t* from, int64_t from_stride, std::span<const int32_t> lens,
               int64_t stride, int32_t* to, ThreadPool* pool) {
  constexpr int64_t kRowsPerTask = 512;
  ForEachInBlocks(pool, static_cast<int64_t>(lens.size()), kRowsPerTask, [&](int64_t i) {
    QT_CHECK_LE(static_cast<int64_t>(lens[i]), std::min(from_stride, stride));
    std::copy_n(from + i * from_stride, lens[i], to + i * stride);
  });
}

// Rounds n up to the next number of the form min * 4^i. The lengths of the running requests change
// all the time; factors of four keep the number of shapes, and so of CUDA graphs, small.
int64_t RoundUpByFours(int64_t n, int64_t min) {
  while (min < n) min *= 4;
  return min;
}

constexpr int64_t kMinStride = 128;  // tokens

}  // namespace

StepShape StepShape::Of(const DecodeBatch& batch) {
  StepShape shape;
  shape.rows = static_cast<int64_t>(batch.tokens.size());
  shape.sequences = static_cast<int64_t>(batch.kv_lens.size());
  shape.groups = static_cast<int64_t>(batch.source_lens.size());
  shape.output_rows = static_cast<int64_t>(batch.output_rows.size());
  shape.slots_stride = batch.slots_stride;
  shape.source_stride = shape.groups > 0 ? batch.source_slots_stride : 0;
  const auto first = std::find_if(batch.adapters.begin(), batch.adapters.end(),
                                  [](int32_t adapter) { return adapter >= 0; });
  shape.adapters = first != batch.adapters.end();
  shape.one_adapter =
      shape.adapters && std::all_of(first, batch.adapters.end(),
                                    [&](int32_t other) { return other < 0 || other == *first; });
  for (int64_t g = 0; g < shape.groups; ++g) {
    const int32_t begin = batch.offsets[static_cast<size_t>(batch.group_offsets[g])];
    const int32_t end = batch.offsets[static_cast<size_t>(batch.group_offsets[g + 1])];
    shape.group_rows = std::max<int64_t>(shape.group_rows, end - begin);
  }
  return shape;
}

StepShape StepShape::RoundedStrides() const {
  StepShape shape = *this;
  shape.slots_stride = RoundUpByFours(slots_stride, kMinStride);
  if (groups > 0) shape.source_stride = RoundUpByFours(source_stride, kMinStride);
  return shape;
}

StepShape StepShape::Rounded(const ModelLimits& limits) const {
  // Rounds n up to 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ... For n above 16, at most a third of the
  // result is padding.
  const auto count = [](int64_t n) {
    int64_t power = 1;
    while (power < n) power *= 2;
    return power > 16 && n <= power / 4 * 3 ? power / 4 * 3 : power;
  };
  StepShape shape = RoundedStrides();
  shape.sequences = std::min(count(sequences), limits.max_step_sequences);
  shape.rows = std::min(count(rows), limits.max_step_tokens);
  shape.output_rows = output_rows == 0 ? 0 : shape.rows;
  if (groups == 0) return shape;
  const int64_t quarter = (shape.sequences + 3) / 4;
  shape.groups = groups <= quarter ? quarter : shape.sequences;
  shape.group_rows = RoundUpByFours(group_rows, 1);
  return shape;
}

int64_t StepArrays::BlockBytes(const StepShape& shape) { return BlockLayout(nullptr, shape).bytes; }

absl::Status StepArrays::Reserve(const StepShape& shape) {
  const int64_t bytes = BlockBytes(shape);
  if (bytes <= block_.bytes()) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(block_, stream_->AllocatePinned(bytes));
  return absl::OkStatus();
}

void StepArrays::Fill(const DecodeBatch& batch, const StepShape& shape, int64_t slots) {
  const int64_t sequences = static_cast<int64_t>(batch.kv_lens.size());
  const int32_t rows = static_cast<int32_t>(batch.tokens.size());
  QT_CHECK_EQ(static_cast<int64_t>(batch.offsets.size()), sequences + 1);
  QT_CHECK_EQ(batch.offsets.front(), 0);
  QT_CHECK_EQ(batch.offsets.back(), rows);
  stream_->WaitForH2D(upload_);
  // Long sequences make the slot tables wide. If these are wider than in all earlier calls, the
  // memory block of the arrays may be too small.
  if (BlockBytes(shape) > block_.bytes()) {
    StepShape larger = shape;
    larger.slots_stride *= 2;
    larger.source_stride *= 2;
    // Out of memory: throw std::bad_alloc, as operator new does. The engine catches it and fails
    // the requests of this step.
    if (!Reserve(larger).ok() && !Reserve(shape).ok()) throw std::bad_alloc();
  }
  shape_ = shape;

  const BlockLayout layout(block_.data(), shape);
  batch_.tokens = CopyPadded(batch.tokens, shape.rows, 0, layout.tokens);
  tokens_ = Tensor::Dense(layout.tokens, DType::kI32, {shape.rows});
  positions_ = Tensor::Dense(layout.positions, DType::kI32, {shape.rows});
  std::fill_n(layout.positions, shape.rows, 0);
  new_slots_ = CopyPadded({}, shape.rows, -1, layout.new_slots);
  batch_.offsets = CopyPadded(batch.offsets, shape.sequences + 1, rows, layout.offsets);
  batch_.kv_lens = CopyPadded(batch.kv_lens, shape.sequences, 0, layout.kv_lens);
  for (const int32_t row : batch.output_rows) QT_CHECK(row >= 0 && row < rows);
  batch_.output_rows = CopyPadded(batch.output_rows, shape.output_rows, 0, layout.output_rows);
  CopyTable(batch.slots, batch.slots_stride, batch.kv_lens, shape.slots_stride, layout.slots,
            &stream_->pool());
  batch_.slots = layout.slots;
  batch_.slots_stride = shape.slots_stride;
  QT_CHECK_LE(batch.moves.size(), static_cast<size_t>(shape.sequences));
  std::copy(batch.moves.begin(), batch.moves.end(), layout.moves);
  batch_.moves = {layout.moves, batch.moves.size()};
  FillRows(batch, slots);
  FillAdapters(batch, layout.row_adapters);
  batch_.group_offsets = {layout.group_offsets, static_cast<size_t>(shape.groups + 1)};
  group_rows_ = {layout.group_rows, static_cast<size_t>(shape.groups + 1)};
  batch_.source_lens = CopyPadded(batch.source_lens, shape.groups, 0, layout.source_lens);
  batch_.source_slots = layout.source_slots;
  if (shape.groups > 0) FillSources(batch, shape);
  upload_ = stream_->CopyH2D(block_.data(), layout.bytes);
}

void StepArrays::PlanForCapture(bool same_offsets) {
  stream_->WaitForH2D(upload_);
  const BlockLayout layout(block_.data(), shape_);
  if (!same_offsets) {
    for (int64_t s = 0; s <= shape_.sequences; ++s) {
      layout.offsets[s] = static_cast<int32_t>(std::min(s, shape_.rows));
    }
    for (int64_t g = 0; g <= shape_.groups; ++g) {
      layout.group_rows[g] = static_cast<int32_t>(std::min(g * shape_.group_rows, shape_.rows));
    }
  }
  std::fill_n(layout.kv_lens, shape_.sequences, static_cast<int32_t>(shape_.slots_stride));
  std::fill_n(layout.source_lens, shape_.groups, static_cast<int32_t>(shape_.source_stride));
}

// Fills positions_ and new_slots_ with the position and the KV cache slot of every new token. If
// neighbouring sequences have the same slot for their new token, only the first one gets the slot
// and the others get -1, so that only one row writes the slot.
void StepArrays::FillRows(const DecodeBatch& batch, int64_t slots) {
  int32_t* positions = positions_.as<int32_t>();
  int32_t latest = -1;
  for (size_t s = 0; s < batch.kv_lens.size(); ++s) {
    const int32_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    const int32_t first = batch.kv_lens[s] - (end - begin);
    QT_CHECK_LE(begin, end);
    QT_CHECK_GE(first, 0);
    for (int32_t row = begin; row < end; ++row) {
      positions[row] = first + row - begin;
      const int32_t slot =
          batch.slots[static_cast<int64_t>(s) * batch.slots_stride + positions[row]];
      QT_CHECK_GE(slot, 0);
      QT_CHECK_LT(static_cast<int64_t>(slot), slots);
      new_slots_[static_cast<size_t>(row)] = slot == latest ? -1 : slot;
      latest = slot;
    }
  }
}

void StepArrays::FillAdapters(const DecodeBatch& batch, int32_t* adapters) {
  row_adapters_ = {};
  if (!shape_.adapters) return;
  QT_CHECK_EQ(batch.adapters.size(), batch.kv_lens.size());
  row_adapters_ = {adapters, static_cast<size_t>(shape_.rows)};
  std::fill(row_adapters_.begin(), row_adapters_.end(), -1);
  for (size_t s = 0; s < batch.adapters.size(); ++s) {
    std::fill(adapters + batch.offsets[s], adapters + batch.offsets[s + 1], batch.adapters[s]);
  }
}

void StepArrays::FillSources(const DecodeBatch& batch, const StepShape& shape) {
  QT_CHECK_EQ(batch.group_offsets.size(), batch.source_lens.size() + 1);
  QT_CHECK_EQ(batch.group_offsets.back(), static_cast<int32_t>(batch.kv_lens.size()));
  int32_t* group_offsets = const_cast<int32_t*>(batch_.group_offsets.data());
  CopyPadded(batch.group_offsets, shape.groups + 1, batch.group_offsets.back(), group_offsets);
  for (int64_t g = 0; g <= shape.groups; ++g) {
    group_rows_[static_cast<size_t>(g)] = batch.offsets[static_cast<size_t>(group_offsets[g])];
  }
  CopyTable(batch.source_slots, batch.source_slots_stride, batch.source_lens, shape.source_stride,
            const_cast<int32_t*>(batch_.source_slots), &stream_->pool());
  batch_.source_slots_stride = shape.source_stride;
}

}  // namespace quintet
