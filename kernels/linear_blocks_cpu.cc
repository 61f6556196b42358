// Linear on the CPU: chunks of rows, one task a panel.
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

// Rows [begin, end) of a call as a call.
LinearArgs RowsOf(const LinearArgs& args, int64_t begin, int64_t end) {
  LinearArgs part = args;
  part.x = args.x.Rows(begin, end);
  if (args.y.defined()) part.y = args.y.Rows(begin, end);
  if (args.residual.defined()) part.residual = args.residual.Rows(begin, end);
  if (args.scatter.base != nullptr) part.scatter.row_offset += begin;
  return part;
}

// Up to kChunkRows rows.
void LinearChunk(const LinearArgs& args, ThreadPool& pool) {
  const LinearWeight& w = *args.w;
  const Activations x = PackActivations(w, args.x, args.scratch, pool);
  const Epilogue epilogue = MakeEpilogue(args, x);
  const int64_t columns = ColumnsPerPanel(w);
  const int64_t panels = Panels(w);
  const int64_t panel_bytes = Groups(w) * kPanelColumns * kUnitBytes;
  const int64_t step = pool.threads();  // threads claim tasks in turn
  pool.ParallelFor(panels, [&](int64_t panel, int) {
    alignas(64) char tile[kChunkRows * kPanelColumns * kUnitBytes];
    const auto finish = [&](const void* sums, int64_t row, int64_t rows) {
      RunEpilogue(epilogue, sums, panel, row, rows, panel * columns);
    };
    PanelProduct p{.finish = finish};
    p.x = &x;
    p.panel = static_cast<const char*>(w.panels()) + panel * panel_bytes;
    if (panel + step < panels) p.next = p.panel + step * panel_bytes;
    p.groups = Groups(w);
    p.tile = tile;
    x.kernel.multiply(p);
  });
}

}  // namespace

bool LinearTakesNorm(const LinearWeight&, int64_t) { return false; }
bool LinearStoresKv(const LinearWeight&, int64_t, const Stream&) { return false; }
int64_t LinearNormParts(const LinearWeight&, int64_t, const Stream&) { return 0; }
bool LinearTakesSquares(const LinearWeight&, int64_t, const Stream&) { return false; }

int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream&) {
  return ActivationBytes(w, std::min(rows, MostChunkRows(w)));
}

void Linear(const LinearArgs& args, Stream& stream) {
  const int64_t rows = args.x.dim[0];
  const int64_t chunk_rows = ChunkRows(*args.w, rows);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    LinearChunk(RowsOf(args, begin, std::min(rows, begin + chunk_rows)), stream.pool());
  }
}

}  // namespace quintet::cpu
