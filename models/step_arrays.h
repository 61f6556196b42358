// The small arrays of one decoder call, in one block of mirrored memory: ops plan with the host
// side, kernels read the twin, and one copy brings it there. Calls of one shape find every array at
// the same address. Not thread safe.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/buffer.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"
#include "models/model.h"

namespace quintet {

// Lengths of the arrays.
struct StepShape {
  int64_t rows = 0;  // new tokens of all sequences
  int64_t sequences = 0;
  int64_t groups = 0;
  int64_t wanted = 0;
  int64_t slots_stride = 0;
  int64_t source_stride = 0;
  int64_t group_rows = 0;  // at most, of one group

  static StepShape Of(const DecodeBatch& batch);
  // Whether every sequence has one new token.
  bool single() const { return rows == sequences; }
  // A shape of few that has room for this one; `rows` and `sequences` stay within the limits.
  StepShape Rounded(const ModelLimits& limits) const;
  // The same, but for the strides exactly: prompts, whose rows cost too much to have idle ones.
  StepShape RoundedStrides() const;
  auto operator<=>(const StepShape&) const = default;
};

class StepArrays {
 public:
  // `stream` outlives the object.
  explicit StepArrays(const Stream* stream) : stream_(stream) {}

  // Bytes of a block for this shape.
  static int64_t BlockBytes(const StepShape& shape);
  // Makes room for this shape; RESOURCE_EXHAUSTED when there is none.
  absl::Status Reserve(const StepShape& shape);

  // Copies the batch into the block and queues its way to the twin. What a shape larger than the
  // batch has more is filled so that it does nothing: rows without a slot, sequences without rows
  // or keys, wanted rows that repeat the first. QT_CHECK: the batch is sound, and its slots are
  // below `slots`.
  void Fill(const DecodeBatch& batch, const StepShape& shape, int64_t slots);

  // Puts the greatest lengths of the shape on the host side, which then plans for any batch of this
  // shape that has one new token a sequence; with `same_offsets` for any that has the same offsets
  // as this one. Kernels go on reading the twin's. For recording a step; waits for its upload.
  void PlanForAll(bool same_offsets);

  // The batch in the block.
  const DecodeBatch& batch() const { return batch_; }
  const void* block() const { return block_.data(); }
  const Tensor& tokens() const { return tokens_; }                         // [rows] i32
  const Tensor& positions() const { return positions_; }                   // [rows] i32
  absl::Span<const int32_t> new_slots() const { return new_slots_; }       // [rows]
  absl::Span<const int32_t> group_offsets() const { return group_rows_; }  // [groups + 1] in rows

 private:
  void PlaceRows(const DecodeBatch& batch, int64_t slots);
  void PlaceSources(const DecodeBatch& batch, const StepShape& shape);

  const Stream* stream_;
  Buffer block_;
  int64_t upload_ = 0;  // of its latest contents
  StepShape shape_;
  DecodeBatch batch_;
  Tensor tokens_, positions_;
  absl::Span<int32_t> new_slots_, group_rows_;
};

}  // namespace quintet
