// The parts of a product on the CPU, shared by linear_cpu.cc, linear_activations_cpu.cc,
// linear_avx512.cc, linear_amx.cc, linear_blocks_cpu.cc and log_prob_cpu.cc.
// Not for other rooms.
//
// Packed layout. Output channels are packed in panels of 32 columns. A panel is [groups][32] units
// of four bytes, where a unit holds the weights of one channel for one group of consecutive k: 1
// f32, 2 bf16 or 4 i8. Channels past n and values past k are 0. Gated: columns [0, 16) of panel p
// are the gate rows [16 p, 16 p + 16), columns [16, 32) the up rows of the same numbers. kI8
// channel data: f32 scales [panels * 32], then i32 128 * sum over k of the weights, [panels * 32].
//
// Why 32: one pass over a panel then serves 12 rows from the registers of AVX-512 (12 x 2 vectors),
// and it reads memory in one ascending stream. With 64 columns 8 rows needed two passes or a
// stride, and cold weights came at half the speed.
//
// Rows of activations are packed too, whatever their type: each panel passes over all of them, and
// rows as they lie in the caller's memory would be as many streams as a kernel has rows, all in one
// set of the first-level cache when they are whole pages apart. Activations of i8 products are
// u8 = quantised value + 128, as VPDPBUSD wants; the sums above take the 128 out again, exactly.
//
// A product takes a chunk of rows, which stay packed in the second-level cache, through all panels.
// A kernel multiplies one panel with the chunk, block by block, and hands the sums of each block
// over as soon as they are complete: RunEpilogue turns them into outputs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/linear.h"

namespace quintet::cpu {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kUnitBytes = 4;
inline constexpr int64_t kChunkRows = 256;     // rows of a chunk at most
inline constexpr int64_t kMostBlockRows = 32;  // rows of a block at most, for any kernel

constexpr int64_t GroupSize(WeightType type) {
  return type == WeightType::kF32 ? 1 : type == WeightType::kBF16 ? 2 : 4;
}
inline int64_t Groups(const LinearWeight& w) {
  return (w.k() + GroupSize(w.type()) - 1) / GroupSize(w.type());
}
// Output columns that one panel yields.
inline int64_t ColumnsPerPanel(const LinearWeight& w) {
  return w.gated() ? kPanelColumns / 2 : kPanelColumns;
}
inline int64_t OutputColumns(const LinearWeight& w) { return w.gated() ? w.n() / 2 : w.n(); }
inline int64_t Panels(const LinearWeight& w) {
  return (OutputColumns(w) + ColumnsPerPanel(w) - 1) / ColumnsPerPanel(w);
}

struct PanelProduct;

struct PanelKernel {
  void (*multiply)(const PanelProduct&) = nullptr;
  int64_t rows = 0;  // of a block, at most
  int64_t run = 0;   // of Activations
};

// Packed rows. They are cut into blocks of nearly one size, the larger ones first. A block of R
// rows is [groups / run][R][run] units: with run 1 the R units of one group are neighbours, with
// run 16 (AMX) 64 bytes of each row are.
struct Activations {
  PanelKernel kernel;  // the one that they are packed for
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

// One panel times all rows of x.
struct PanelProduct {
  const Activations* x = nullptr;
  const char* panel = nullptr;
  const char* next =
      nullptr;  // the panel that this thread likely takes next, fetched ahead; or null
  int64_t groups = 0;
  char* tile = nullptr;  // scratch [kChunkRows, 32] units, aligned to 64
  // Takes the sums [rows, 32] f32, or i32 for kI8, of rows [row, row + rows) of x. Those of the
  // only block of x stay in the tile, from its beginning on.
  absl::FunctionRef<void(const void* sums, int64_t row, int64_t rows)> finish;
};

// Of the weights, ahead of their use by the only block of rows, in bytes. On one core of a Xeon
// with AMX GPT-2 in f32 (48 steps of one row, 2026-11-22) takes 1,420 ms with 2,048 and 2,560,
// 1,415 with 3,072, 1,491 with 4,096 and 1,471 with 6,144.
inline constexpr int64_t kAhead = 3072;
// Groups that all blocks pass over before the next ones: their weights should stay in the
// second-level cache meanwhile.
int64_t GroupsOfPass(int64_t blocks, int64_t groups);

// The fastest kernel that the CPU has for so many rows of a chunk and weights of this type.
PanelKernel ChoosePanelKernel(WeightType type, int64_t rows);
// Kernels beyond Highway's targets (linear_avx512.cc, linear_amx.cc); `multiply` is null where the
// CPU lacks them.
PanelKernel VnniPanelKernel();
PanelKernel Bf16PanelKernel();
PanelKernel AmxI8PanelKernel();
PanelKernel AmxBf16PanelKernel();

// Rows of a chunk at most: about as many as a quarter of the second-level cache holds.
int64_t MostChunkRows(const LinearWeight& w);
// Rows of the chunks that `rows` rows are cut into, nearly all of one size.
int64_t ChunkRows(const LinearWeight& w, int64_t rows);
// Bytes of scratch that PackActivations needs for a chunk of `rows` rows.
int64_t ActivationBytes(const LinearWeight& w, int64_t rows);
// Packs x [rows <= kChunkRows, k] into scratch, converted to the product's type.
Activations PackActivations(const LinearWeight& w, const Tensor& x, const Tensor& scratch,
                            ThreadPool& pool);

// How one row becomes u8: y = round(x * inverse) + 128.
struct RowScale {
  float scale = 0.0f;
  float inverse = 0.0f;
};
RowScale ScaleOfRow(const float* x, int64_t k);
// n values to u8 or to bf16 (only where there is a Bf16PanelKernel), padded to whole groups.
void QuantizeValues(const float* x, int64_t n, float inverse, uint8_t* y);
void Bf16RoundValues(const float* x, int64_t n, uint16_t* y);

struct Epilogue {
  const LinearWeight* w = nullptr;
  const float* row_scales = nullptr;  // Activations::scales
  const float* bias = nullptr;        // [n] or null
  float alpha = 1.0f;
  Activation activation = Activation::kNone;
  const float* residual = nullptr;  // or null
  int64_t residual_stride = 0;
  float* y = nullptr;  // unused with scatter
  int64_t y_stride = 0;
  const ScatterOutput* scatter = nullptr;
};
// Rows [row, row + rows) of the panel's columns, from the sums that PanelProduct yields. The
// panel's first column goes to column `y_column` of y: Linear gives its own place, log_prob.h a
// buffer for one panel.
void RunEpilogue(const Epilogue& epilogue, const void* sums, int64_t panel, int64_t row,
                 int64_t rows, int64_t y_column);

}  // namespace quintet::cpu
