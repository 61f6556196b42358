// The index arrays of one decoder call, packed into one block of pinned memory with a device
// buffer. Ops read the host copy to plan their launches (grid sizes); kernels read the device copy.
// One H2D copy transfers the whole block. In all calls of one shape each array has the same
// address, as CUDA graphs require; only growing the block (Reserve) changes the addresses. Not
// thread safe.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/model.h"

namespace quintet {

// Lengths and row strides of the arrays of a DecodeBatch.
struct StepShape {
  int64_t rows = 0;  // new tokens of all sequences
  int64_t sequences = 0;
  int64_t groups = 0;
  int64_t output_rows = 0;
  int64_t slots_stride = 0;
  int64_t source_stride = 0;
  int64_t group_rows = 0;    // most rows of one group
  bool adapters = false;     // some sequence has an adapter
  bool one_adapter = false;  // and all of these have the same
  // All sequences have the adapter of MergedWeights; `adapters` is then false. Of does not set it.
  bool merged_adapter = false;

  static StepShape Of(const DecodeBatch& batch);
  // True if every sequence has one new token.
  bool single() const { return rows == sequences; }
  // Returns this shape with every field rounded up to one of a few possible values; hence few CUDA
  // graphs serve all steps. `rows` is rounded to at most limits.max_step_tokens, `sequences` to at
  // most limits.max_step_sequences.
  StepShape Rounded(const ModelLimits& limits) const;
  // Returns this shape with only slots_stride and source_stride rounded up. Used for prompts,
  // because padding their many rows would be expensive.
  StepShape RoundedStrides() const;
  auto operator<=>(const StepShape&) const = default;
};

class StepArrays {
 public:
  // `stream` must outlive this object.
  explicit StepArrays(const Stream* stream) : stream_(stream) {}

  // Size in bytes of the memory block that holds all arrays of a decoder call with this StepShape.
  static int64_t BlockBytes(const StepShape& shape);
  // Grows the memory block of the arrays to fit this shape. RESOURCE_EXHAUSTED: not enough host or
  // device memory.
  absl::Status Reserve(const StepShape& shape);

  // Copies the batch into the block, pads its arrays to `shape`, and enqueues the block's H2D copy.
  // Padding has no effect on results: it is rows with slot -1, empty sequences, and output rows
  // that repeat row 0. `slots` is the number of slots of the KV cache. Aborts (QT_CHECK) if the
  // batch is not consistent or has a slot number that is negative or not below `slots`.
  void Fill(const DecodeBatch& batch, const StepShape& shape, int64_t slots);

  // Prepares a CUDA graph capture: in the host copy of the arrays, sets the lengths of sequences
  // and of their encoder inputs to the largest that the shape allows. Ops plan their launches from
  // these lengths. If `same_offsets` is false, the launches are then valid for every batch of this
  // shape with one new token per sequence. If it is true, they are valid for every batch of this
  // shape whose offsets and group_offsets (DecodeBatch) equal those of the current batch. The
  // device copy of the arrays still holds the current batch. Waits for the H2D copy that Fill
  // enqueued.
  void PlanForCapture(bool same_offsets);

  // The copy that Fill made of the batch. Its spans and pointers refer to memory of this object.
  const DecodeBatch& batch() const { return batch_; }
  const void* block() const { return block_.data(); }
  const Tensor& tokens() const { return tokens_; }                   // [rows] i32
  const Tensor& positions() const { return positions_; }             // [rows] i32
  std::span<const int32_t> new_slots() const { return new_slots_; }  // [rows]
  // [rows] adapter of each row, -1: none; empty unless StepShape::adapters.
  std::span<const int32_t> row_adapters() const { return row_adapters_; }
  const StepShape& shape() const { return shape_; }
  std::span<const int32_t> group_offsets() const { return group_rows_; }  // [groups + 1], in rows

 private:
  void FillRows(const DecodeBatch& batch, int64_t slots);
  void FillAdapters(const DecodeBatch& batch, int32_t* adapters);
  void FillSources(const DecodeBatch& batch, const StepShape& shape);

  const Stream* stream_;
  Buffer block_;
  int64_t upload_ = 0;  // number of the block's latest H2D copy
  StepShape shape_;
  DecodeBatch batch_;
  Tensor tokens_, positions_;
  std::span<int32_t> new_slots_, group_rows_, row_adapters_;
};

}  // namespace quintet
