// Parts of the CPU GEMM, shared by linear_cpu.cc, linear/activations_cpu.cc, linear/avx512.cc,
// linear/amx.cc, linear/blocks_cpu.cc and log_prob_cpu.cc; not for other folders.
//
// Packed layout. Output channels are packed in panels of 32 columns. A panel is [groups][32] units
// of four bytes; a unit holds the weights of one channel for one group of consecutive k: 1 f32, 2
// bf16 or 4 i8. Channels past n and values past k are 0. Gated: columns [0, 16) of panel p are the
// gate rows [16 p, 16 p + 16), columns [16, 32) the up rows [16 p, 16 p + 16), counted from the
// first up row. kI8 channel data: f32 scales [panels * 32], then 128 times the sum of the channel's
// weights over k, i32 [panels * 32].
//
// Why 32 columns: one pass over a panel then serves 12 rows from the registers of AVX-512 (12 x 2
// vectors) and reads memory in one ascending stream. Panels of 64 columns would need either two
// passes over the rows or strided reads of the panel; in measurements, either halved the speed at
// which weights arrive from memory.
//
// Activations are packed too, whatever their dtype, because a kernel reads all rows of a block at
// the same k: unpacked, every row would be a memory stream of its own, and rows that are a multiple
// of the page size apart would all use the same set of the L1 cache. Activations of i8 GEMMs are u8
// = quantised value + 128, as VPDPBUSD needs; the channel sums above subtract the 128 again,
// exactly.
//
// A GEMM multiplies a chunk of rows, which stay packed in the L2 cache, by all panels. A kernel
// multiplies one panel by the chunk, one block of rows after the other, and passes the sums of each
// block to PanelGemm::finish as soon as they are complete.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/linear/linear.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet::cpu {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kUnitBytes = 4;
inline constexpr int64_t kChunkRows = 256;     // maximum rows of a chunk
inline constexpr int64_t kMostBlockRows = 32;  // maximum rows of a block, for any kernel

constexpr int64_t GroupSize(WeightType type) {
  return type == WeightType::kF32 ? 1 : type == WeightType::kBF16 ? 2 : 4;
}
inline int64_t Groups(const WeightView& w) {
  return (w.k() + GroupSize(w.type()) - 1) / GroupSize(w.type());
}
// Number of columns of y that one panel of 32 output channels yields: 32, or 16 if W is gated (16
// gate channels and their 16 up channels).
inline int64_t ColumnsPerPanel(const WeightView& w) {
  return w.gated() ? kPanelColumns / 2 : kPanelColumns;
}
inline int64_t OutputColumns(const WeightView& w) { return w.gated() ? w.n() / 2 : w.n(); }
inline int64_t Panels(const WeightView& w) {
  return (OutputColumns(w) + ColumnsPerPanel(w) - 1) / ColumnsPerPanel(w);
}

struct PanelGemm;

// A CPU GEMM kernel, which multiplies packed rows of x by one panel of W: the packed weights of 32
// output channels.
struct PanelKernel {
  void (*multiply)(const PanelGemm&) = nullptr;
  int64_t rows = 0;  // maximum rows of a block
  int64_t run = 0;   // layout of the activations, see Activations
};

// Packed rows of x, split into blocks of nearly equal size, the larger ones first. A block of R
// rows is an array [groups / run][R][run] of four-byte units; a unit has the values of one row for
// one group of k. `run` is the number of consecutive units of a row that a kernel loads at once: 1,
// or 16 for AMX.
struct Activations {
  PanelKernel kernel;  // the kernel that reads them
  const char* data = nullptr;
  int64_t rows = 0;
  int64_t blocks = 0;
  int64_t groups = 0;             // padded to a multiple of run
  const float* scales = nullptr;  // [rows], kI8 only

  int64_t BlockBegin(int64_t block) const {
    return block * (rows / blocks) + std::min(block, rows % blocks);
  }
  int64_t BlockRows(int64_t block) const { return BlockBegin(block + 1) - BlockBegin(block); }
  const char* Block(int64_t block) const { return data + BlockBegin(block) * groups * kUnitBytes; }
};

// Arguments of a panel kernel (PanelKernel), which multiplies a chunk of x (up to kChunkRows rows)
// by one panel of W (32 output channels).
struct PanelGemm {
  const Activations* x = nullptr;
  const char* panel = nullptr;
  // The panel that this thread will probably multiply next, for prefetching; or null.
  const char* next = nullptr;
  int64_t groups = 0;
  char* tile = nullptr;  // scratch [kChunkRows, 32] units, aligned to 64
  // Called once for each block of rows of x: `sums` [rows, 32] f32, or i32 for kI8, are the results
  // for rows [row, row + rows) of x. If x has only one block, its sums are still at the beginning
  // of `tile` after the kernel returns.
  absl::FunctionRef<void(const void* sums, int64_t row, int64_t rows)> finish;
};

// How far ahead of the current weights, in bytes, the kernels of linear/tile-inl.h prefetch weights
// if x has only one block of rows. Measured on one core of a Xeon with AMX: linear/NOTES.md.
inline constexpr int64_t kAhead = 3072;
// Returns the number of groups of k in one pass (a group: 1 f32, 2 bf16 or 4 int8 consecutive
// values). A kernel multiplies the weights of these groups by all blocks of rows before it
// continues with the next pass, so that these weights stay in the L2 cache.
int64_t GroupsOfPass(int64_t blocks, int64_t groups);

// Returns the fastest kernel of this CPU for a chunk of `rows` rows and weights of this type.
PanelKernel ChoosePanelKernel(WeightType type, int64_t rows);
// Kernels for instruction sets that Highway does not cover (linear/avx512.cc, linear/amx.cc). If
// the CPU lacks the instructions, PanelKernel::multiply is null.
PanelKernel VnniPanelKernel();
PanelKernel Bf16PanelKernel();
PanelKernel AmxI8PanelKernel();
PanelKernel AmxBf16PanelKernel();

// Maximum rows of a chunk: as many packed rows as fit into a quarter of the L2 cache, but at least
// 48 and at most kChunkRows.
int64_t MostChunkRows(const WeightView& w);
// Rows per chunk if `rows` rows are split into chunks of nearly equal size.
int64_t ChunkRows(const WeightView& w, int64_t rows);
// Bytes of scratch that PackActivations needs for a chunk of `rows` rows.
int64_t ActivationBytes(const WeightView& w, int64_t rows);
// Packs x [rows <= kChunkRows, k] into scratch, converted to the dtype of the GEMM.
Activations PackActivations(const WeightView& w, const Tensor& x, const Tensor& scratch,
                            ThreadPool& pool);

// Symmetric quantisation of one row to u8: y = round(x * inverse) + 128, and x is about (y - 128) *
// scale.
struct RowScale {
  float scale = 0.0f;
  float inverse = 0.0f;
};
RowScale ScaleOfRow(const float* x, int64_t k);
// QuantizeValues quantises n values to u8: y = round(x * inverse) + 128, with `inverse` from
// ScaleOfRow. Bf16RoundValues rounds n values to bf16; only for CPUs that have a Bf16PanelKernel.
// Both fill the last group of y (4 u8 or 2 bf16 values) as if x were 0 past n.
void QuantizeValues(const float* x, int64_t n, float inverse, uint8_t* y);
void Bf16RoundValues(const float* x, int64_t n, uint16_t* y);

struct Epilogue {
  const WeightView* w = nullptr;
  const float* row_scales = nullptr;  // Activations::scales
  const float* bias = nullptr;        // [n] or null
  const float* row_bias = nullptr;    // [rows, n] or null
  int64_t row_bias_stride = 0;
  float alpha = 1.0f;
  Activation activation = Activation::kNone;
  const float* residual = nullptr;  // [rows, columns] f32, or null
  int64_t residual_stride = 0;
  float* y = nullptr;  // unused with scatter
  int64_t y_stride = 0;
  const ScatterOutput* scatter = nullptr;
};
// Computes the outputs of rows [row, row + rows) for the columns of a panel, from the sums that
// PanelGemm::finish received. Writes the first column of the panel to column `y_column` of y. In
// Linear, y is the whole result, and y_column is the position of the panel in it. In
// log_prob_cpu.cc, y is a buffer for one panel, and y_column is 0.
void RunEpilogue(const Epilogue& epilogue, const void* sums, int64_t panel, int64_t row,
                 int64_t rows, int64_t y_column);

}  // namespace quintet::cpu
