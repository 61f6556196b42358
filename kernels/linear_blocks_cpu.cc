// Linear on the CPU: one task a panel and block of rows.
#include <algorithm>

#include "kernels/cpu_ops.h"
#include "kernels/linear_cpu.h"

namespace quintet::cpu {
namespace {

Epilogue MakeEpilogue(const LinearArgs& a, const Activations& x) {
  Epilogue e;
  e.w = a.w;
  e.row_scales = x.scales;
  e.bias = a.bias.defined() ? a.bias.f32() : nullptr;
  e.alpha = a.alpha;
  e.activation = a.activation;
  if (a.scatter.base != nullptr) {
    e.scatter = &a.scatter;
    return e;
  }
  e.y = a.y.f32();
  e.y_stride = a.y.stride[0];
  if (a.residual.defined()) {
    e.residual = a.residual.f32();
    e.residual_stride = a.residual.stride[0];
  }
  return e;
}

}  // namespace

bool LinearTakesNorm(const LinearWeight&, int64_t) { return false; }

int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream&) {
  return ActivationBytes(w, rows);
}

void Linear(const LinearArgs& args, Stream& stream) {
  const LinearWeight& w = *args.w;
  const int64_t rows = args.x.dim[0];
  if (rows == 0) return;
  const Activations x = ConvertActivations(w, args.x, args.scratch, stream.pool());
  const Epilogue epilogue = MakeEpilogue(args, x);
  const PanelProductFunction product = ChoosePanelProduct(w.type());
  const int64_t groups = Groups(w);
  const int64_t columns = ColumnsPerPanel(w);
  const int64_t panels = Panels(w);
  const int64_t block_rows = BlockRows(rows, groups * kUnitBytes);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int64_t panel_bytes = groups * kPanelColumns * kUnitBytes;
  const int64_t step = stream.pool().threads();  // threads claim tasks in turn
  stream.pool().ParallelFor(panels * blocks, [&](int64_t task, int) {
    alignas(64) char tile[kTileRows * kPanelColumns * kUnitBytes];
    const int64_t panel = task % panels;
    const int64_t row = task / panels * block_rows;
    PanelProduct p;
    p.x = static_cast<const char*>(x.data) + row * x.row_bytes;
    p.x_row_bytes = x.row_bytes;
    p.panel = static_cast<const char*>(w.panels()) + panel * panel_bytes;
    if (panel + step < panels) p.next = static_cast<const char*>(p.panel) + step * panel_bytes;
    p.groups = groups;
    p.rows = std::min(block_rows, rows - row);
    p.tile = tile;
    product(p);
    RunEpilogue(epilogue, tile, panel, row, p.rows, panel * columns);
  });
}

}  // namespace quintet::cpu
