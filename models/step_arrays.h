// The index arrays of one decoder call, packed into one block of pinned memory with a device
// buffer. Ops plan their launches from the host side; kernels read the device side. One H2D copy
// transfers the whole block. In all calls of one shape each array has the same address, as CUDA
// graphs require. Not thread safe.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/model.h"

namespace quintet {

// Lengths of the arrays of a DecodeBatch.
struct StepShape {
  int64_t rows = 0;  // new tokens of all sequences
  int64_t sequences = 0;
  int64_t groups = 0;
  int64_t output_rows = 0;
  int64_t slots_stride = 0;
  int64_t source_stride = 0;
  int64_t group_rows = 0;  // most rows of one group

  static StepShape Of(const DecodeBatch& batch);
  // Every sequence has one new token.
  bool single() const { return rows == sequences; }
  // Returns a shape at least as large, out of a small set, so that few CUDA graphs serve all steps.
  // `rows` and `sequences` stay within the limits.
  StepShape Rounded(const ModelLimits& limits) const;
  // Rounds only the strides. For prompts, which have too many rows for padding rows to be cheap.
  StepShape RoundedStrides() const;
  auto operator<=>(const StepShape&) const = default;
};

class StepArrays {
 public:
  // `stream` outlives the object.
  explicit StepArrays(const Stream* stream) : stream_(stream) {}

  // Bytes of a block for this shape.
  static int64_t BlockBytes(const StepShape& shape);
  // Grows the block to fit this shape. RESOURCE_EXHAUSTED: the system has not enough memory.
  absl::Status Reserve(const StepShape& shape);

  // Copies the batch into the block and enqueues the H2D copy. Padding up to `shape` is inert: slot
  // -1, empty sequences, and output rows that repeat row 0. QT_CHECK: the batch is consistent, and
  // its slots are below `slots`.
  void Fill(const DecodeBatch& batch, const StepShape& shape, int64_t slots);

  // Prepares a CUDA graph capture. Overwrites the host side with the largest lengths of the shape,
  // so that ops plan launches that are valid for every batch of this shape with one new token per
  // sequence, or with `same_offsets` for every batch with the current offsets. The device side
  // keeps the current batch. Waits for the batch's H2D copy.
  void PlanForCapture(bool same_offsets);

  // The batch, with all arrays in the block.
  const DecodeBatch& batch() const { return batch_; }
  const void* block() const { return block_.data(); }
  const Tensor& tokens() const { return tokens_; }                         // [rows] i32
  const Tensor& positions() const { return positions_; }                   // [rows] i32
  absl::Span<const int32_t> new_slots() const { return new_slots_; }       // [rows]
  absl::Span<const int32_t> group_offsets() const { return group_rows_; }  // [groups + 1] in rows

 private:
  void FillRows(const DecodeBatch& batch, int64_t slots);
  void FillSources(const DecodeBatch& batch, const StepShape& shape);

  const Stream* stream_;
  Buffer block_;
  int64_t upload_ = 0;  // number of the block's latest H2D copy
  StepShape shape_;
  DecodeBatch batch_;
  Tensor tokens_, positions_;
  absl::Span<int32_t> new_slots_, group_rows_;
};

}  // namespace quintet
