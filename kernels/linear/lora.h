// Corrections of a GEMM by LoRA adapters (Hu et al. 2021). Each row of x uses one adapter, which
// may differ from row to row, or none. For a row with adapter t, each part p of the outputs gets
//   y[c] += sum over i of (x . a[i]) * b[i, c],   a, b: the factors of adapter t for part p
// where x . a[i] is the dot product of the row and row i of a. A part is a range of output columns
// that is one linear module of the original model: the queries, the keys or the values of a QKV
// GEMM, the gate or the up half of a gated weight.
//
// CPU: everything is f32; sums run in an order that does not depend on the other rows. GPU: the
// factors have the dtype of activations, sums are f32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"
#include "kernels/linear/linear.h"

namespace quintet {

class Stream;  // kernels/runtime/stream.h

// The factors of one adapter for one part of a weight, in memory of the stream's backend. The
// adapter's scale is multiplied into b.
struct LoraPart {
  const void* a = nullptr;  // [rank, k]
  const void* b = nullptr;  // CPU: [rank, part_columns]; GPU: [part_columns, rank]
  // The rank; 0 if the adapter does not change this part. On a GPU it is rounded up to a multiple
  // of kLoraRankMultiple, and the additional rows of `a` and columns of `b` are 0.
  int64_t rank = 0;
};
constexpr int64_t kLoraRankMultiple = 16;

// The factors of all adapters for one weight W [n, k]. Its n rows are `parts` modules (such as q, k
// and v) of part_columns rows each.
struct LoraWeight {
  // The table, in memory of the stream's backend, has entry [t * stride + p] for adapter t, part p.
  const LoraPart* table = nullptr;
  int64_t stride = 0;
  int64_t parts = 0, part_columns = 0, k = 0;
  int64_t max_rank = 0;  // maximum of all adapters and parts
  DType dtype = DType::kF32;
  // GPU only: a word of device memory that only GEMMs with LinearArgs::lora write. Its initial
  // value is 2^16 + i * 2^48, where i differs between all weights that share LoraInput::words.
  uint64_t* counter = nullptr;

  int64_t n() const { return parts * part_columns; }
};

struct AddLoraArgs {
  Tensor x;  // [rows, k] f32 or of the factors' dtype, unit last stride
  // Norm of x, f32, computed first: LayerNorm if norm_beta is set, RMSNorm if only norm_gamma is.
  Tensor norm_gamma, norm_beta;  // [k] f32, or undefined
  float norm_eps = 0.0f;
  const LoraWeight* weight = nullptr;
  // [rows] the adapter of each row; -1: none. On a GPU this is a pinned host array that has a
  // device copy.
  std::span<const int32_t> adapters;
  // The outputs, to which the terms are added. They are stored as in LinearArgs. With `kv`: K and V
  // are in the cache, the other columns in y. With `scatter`: all columns are in scatter.base.
  // Neither may be of kF8: adding to a rounded value would round it twice.
  Tensor y;  // [rows, n] f32 or of the factors' dtype, unit last stride
  ScatterOutput scatter;
  KvOutput kv;
  bool overwrite = false;  // y = the correction, 0 in rows without an adapter
  Tensor scratch;          // LoraScratchBytes bytes as [bytes] i8
};
// Checks the shapes (QT_CHECK) and adds the adapters' terms to the outputs. Zero rows are allowed.
void AddLora(const AddLoraArgs& args, Stream& stream);
int64_t LoraScratchBytes(const LoraWeight& weight, int64_t rows);

struct MergeLoraArgs {
  const WeightView* w = nullptr;     // [n, k]
  const LoraWeight* lora = nullptr;  // the terms of w
  int32_t adapter = 0;
  void* to = nullptr;  // [n, k] of w's type, dense, in memory of the stream's backend
};
// Writes W with the terms of one adapter to args.to. Each value is rounded once. GEMMs of few rows
// load their weights before the previous kernel has ended (see kernels/linear/gemm.cuh): before one
// reads args.to, something other than a kernel must follow on the stream.
void MergeLora(const MergeLoraArgs& args, Stream& stream);
// Whether MergeLora supports the weight: on a GPU, if it has 16-bit values.
bool SupportsMergeLora(const WeightView& w, const LoraWeight& lora, const Stream& stream);

// Sizes of LoraInput::words and LoraInput::copy (linear.h) in bytes, sufficient for any call that
// SupportsLora allows. `w`: the weight to which the terms are added. 0 on a CPU.
int64_t LoraWordBytes(const LoraWeight& weight, const Stream& stream);
int64_t LoraCopyBytes(const WeightView& w, const Stream& stream);

constexpr int64_t kLoraSlice = 256;  // GPU: values of k in a partial sum of LoraInput::words

}  // namespace quintet
