// Weights of GEMMs (linear/linear.h), packed once at load.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/buffer.h"

namespace quintet {

// A weight matrix W [n, k] in the layout that the GEMM kernels read, and its memory. Immutable once
// packed; concurrent reads are safe.
class LinearWeight : public WeightView {
 public:
  // Allocates memory for W. `gated`: W consists of n/2 gate rows and then n/2 up rows. On the CPU
  // the two halves are interleaved in memory, so that one GEMM yields both halves of a gated
  // activation together. With a `device`, W is in device memory, and the Device object must outlive
  // the calls of Pack.
  static absl::StatusOr<LinearWeight> Allocate(int64_t n, int64_t k, WeightType type, bool gated,
                                               Device* device = nullptr);
  // Takes the arguments of Allocate but allocates no memory. The result has no values and serves
  // only to compute sizes, with bytes() and LinearScratchBytes.
  static absl::StatusOr<LinearWeight> Describe(int64_t n, int64_t k, WeightType type, bool gated,
                                               Device* device = nullptr);
  LinearWeight() = default;

  // Ranges of rows that are packed in parallel must begin at multiples of kPackRows.
  static constexpr int64_t kPackRows = 64;
  // Fills output channels [row, row + w.dim[0]) from w [rows, k] f32|bf16|f16 with any strides.
  // (GPT-2's weights, which are [in, out] in files, are passed as a transposed view.) Quantises as
  // QuantizeRows does. Rows are numbered as in the file: gate rows are [0, n/2), up rows [n/2, n).
  // Several threads may fill disjoint ranges at once if each range begins at a multiple of
  // kPackRows and ends at such a multiple or at row n. If W is gated, each range must instead be
  // within one half (gate rows or up rows), begin at a multiple of kPackRows counted from the first
  // row of that half, and end at such a multiple or at the end of the half.
  void Pack(int64_t row, const Tensor& w);
  // Fills output channels like Pack, but from values that are already quantised: w [rows, k] of
  // WeightDType(type()), scales [rows] f32.
  void PackQuantized(int64_t row, const Tensor& w, const Tensor& scales);
  // The memory that panels() returns, for a kernel that fills it instead of Pack.
  void* mutable_panels() { return panel_memory_.data(); }
  // The inverse of Pack, for tests: writes dequantised rows to w [rows, k] f32. CPU only.
  void Unpack(int64_t row, const Tensor& w) const;

 private:
  void WriteRows(int64_t row, const Tensor& w);
  void WriteQuantized(int64_t row, const Tensor& w, const Tensor& scales);

  Device* device_ = nullptr;
  Buffer panel_memory_;
  Buffer channel_memory_;  // quantised only: scale of each channel; kI8 on a CPU: scales and sums
};

// Quantises rows in the same way as Pack, for writing them to a file: reads w [rows, k]
// f32|bf16|f16, writes q [rows, k] i8 or f8, dense, and scales [rows] f32. Symmetric: the largest
// magnitude of a channel becomes 127 (i8) or 448 (f8).
void QuantizeRows(const Tensor& w, const Tensor& q, const Tensor& scales);

}  // namespace quintet
