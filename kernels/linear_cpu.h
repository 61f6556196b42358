// The parts of a product on the CPU, shared by linear_cpu.cc, linear_avx512.cc, linear_amx.cc
// and log_prob_cpu.cc.
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
// Products run in two stages over a tile of rows x 32 accumulators that stays in the first-level
// cache: PanelProduct fills it, then Epilogue turns it into outputs. Activations of i8 products are
// u8 = quantised value + 128, as VPDPBUSD wants; the sums above take the 128 out again, exactly.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace quintet::cpu {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kUnitBytes = 4;
inline constexpr int64_t kTileRows = 96;  // rows of one call at most

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

// Rows that a wide product takes through all panels before it goes on: their activations should
// stay in the second-level cache, and the more rows, the less often the weights come from beyond
// it.
inline int64_t BlockRows(int64_t rows, int64_t row_bytes) {
  constexpr int64_t kCacheBytes = int64_t{512} << 10;
  const int64_t most = kCacheBytes / row_bytes / 12 * 12;
  const int64_t limit = most > kTileRows ? kTileRows : most < 48 ? 48 : most;
  const int64_t blocks = (rows + limit - 1) / limit;
  return (rows + blocks - 1) / blocks;
}

struct PanelProduct {
  const void* x = nullptr;  // [rows, groups] units
  int64_t x_row_bytes = 0;  // stride
  const void* panel = nullptr;
  const void* next = nullptr;  // the panel that this thread likely takes next, fetched ahead; or null
  int64_t groups = 0;
  int64_t rows = 0;      // 1..kTileRows
  void* tile = nullptr;  // [rows, 32] f32, or i32 for kI8; aligned to 64
};
using PanelProductFunction = void (*)(const PanelProduct&);
// The fastest kernel that the CPU has for this type.
PanelProductFunction ChoosePanelProduct(WeightType type);
// Kernels beyond Highway's targets (linear_avx512.cc, linear_amx.cc); null where the CPU lacks them.
PanelProductFunction VnniPanelProduct();
PanelProductFunction Bf16PanelProduct();
PanelProductFunction AmxI8PanelProduct();
PanelProductFunction AmxBf16PanelProduct();

// Rows of activations as a product of this type wants them.
struct Activations {
  const void* data = nullptr;
  int64_t row_bytes = 0;
  const float* scales = nullptr;  // [rows], kI8 only
};
// Bytes of scratch that ConvertActivations needs. For kF32 it is small or 0, and only speed suffers
// without it.
int64_t ActivationBytes(const LinearWeight& w, int64_t rows);
// f32 weights use x in place, mostly; for the others x [rows, k] is converted into scratch.
Activations ConvertActivations(const LinearWeight& w, const Tensor& x, const Tensor& scratch,
                               ThreadPool& pool);
// One row of x [k] to u8 with its scale, or to bf16 (only where Bf16PanelProduct is not null); both
// padded to groups.
void QuantizeRow(const float* x, int64_t k, uint8_t* y, float* scale);
void Bf16RoundRow(const float* x, int64_t k, uint16_t* y);

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
// Rows [row, row + rows) of the panel's columns, from the tile that PanelProduct filled. The
// panel's first column goes to column `y_column` of y: Linear gives its own place, log_prob.h a
// buffer for one panel.
void RunEpilogue(const Epilogue& epilogue, const void* tile, int64_t panel, int64_t row,
                 int64_t rows, int64_t y_column);

}  // namespace quintet::cpu
