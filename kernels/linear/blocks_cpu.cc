// The Linear op (GEMM) on the CPU. The rows of x are processed in chunks, one after the other. A
// chunk is divided into tasks for the threads: a task multiplies all rows of the chunk by one panel
// of W (32 output channels) or, if there are few rows, by several panels.
#include <algorithm>

#include "kernels/cpu_ops.h"
#include "kernels/linear/linear_cpu.h"

namespace quintet::cpu {
namespace {

Epilogue MakeEpilogue(const LinearArgs& a, const Activations& x) {
  Epilogue e;
  e.w = a.w;
  e.row_scales = x.scales;
  e.bias = a.bias.defined() ? a.bias.f32() : nullptr;
  if (a.row_bias.defined()) {
    e.row_bias = a.row_bias.f32();
    e.row_bias_stride = a.row_bias.stride[0];
  }
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

// Returns the arguments of a Linear call restricted to its rows [begin, end).
LinearArgs RowsOf(const LinearArgs& args, int64_t begin, int64_t end) {
  LinearArgs part = args;
  part.x = args.x.Rows(begin, end);
  if (args.y.defined()) part.y = args.y.Rows(begin, end);
  if (args.residual.defined()) part.residual = args.residual.Rows(begin, end);
  if (args.row_bias.defined()) part.row_bias = args.row_bias.Rows(begin, end);
  if (args.scatter.base != nullptr) part.scatter.row_offset += begin;
  return part;
}

// Number of panels of W that one task multiplies (a panel: the weights of 32 output channels). It
// is one if the rows of the chunk form several blocks. With a single block of rows, nearly all time
// goes into reading weights from memory, and a core reads no weights while it runs an epilogue. A
// task then multiplies several panels, stores the sums of each in a separate tile, and runs all
// epilogues at the end. Measurements: linear/NOTES.md.
int64_t PanelsOfTask(const Activations& x, int64_t panels, int64_t threads) {
  constexpr int64_t kMost = 16;
  constexpr int64_t kTasksOfThread = 6;  // balances the load at the end
  if (x.blocks > 1) return 1;
  const int64_t most = std::min(kMost, kChunkRows / x.rows);
  return threads == 1 ? most : std::clamp<int64_t>(panels / (threads * kTasksOfThread), 1, most);
}

// Computes one chunk: a Linear call of up to kChunkRows rows.
void LinearChunk(const LinearArgs& args, ThreadPool& pool) {
  const WeightView& w = *args.w;
  const Activations x = PackActivations(w, args.x, args.scratch, pool);
  const Epilogue epilogue = MakeEpilogue(args, x);
  const int64_t columns = ColumnsPerPanel(w);
  const int64_t panels = Panels(w);
  const int64_t panel_bytes = Groups(w) * kPanelColumns * kUnitBytes;
  const int64_t step = pool.threads();  // threads claim tasks in turn
  const int64_t run = PanelsOfTask(x, panels, pool.threads());
  pool.ParallelFor((panels + run - 1) / run, [&](int64_t task, int) {
    alignas(64) char tiles[kChunkRows * kPanelColumns * kUnitBytes];
    const int64_t begin = task * run, end = std::min(panels, begin + run);
    const auto tile = [&](int64_t panel) {
      return tiles + (panel - begin) * x.rows * kPanelColumns * kUnitBytes;
    };
    for (int64_t panel = begin; panel < end; ++panel) {
      const auto finish = [&](const void* sums, int64_t row, int64_t rows) {
        if (x.blocks > 1) RunEpilogue(epilogue, sums, panel, row, rows, panel * columns);
      };
      PanelGemm p{.finish = finish};
      p.x = &x;
      p.panel = static_cast<const char*>(w.panels()) + panel * panel_bytes;
      if (panel + step < panels) p.next = p.panel + step * panel_bytes;
      p.groups = Groups(w);
      p.tile = tile(panel);
      x.kernel.multiply(p);
    }
    for (int64_t panel = begin; x.blocks == 1 && panel < end; ++panel) {
      RunEpilogue(epilogue, tile(panel), panel, 0, x.rows, panel * columns);
    }
  });
}

}  // namespace

bool SupportsFusedNorm(const LinearArgs&, const ThreadPool&) { return false; }
bool SupportsKvStore(const WeightView&, int64_t, const ThreadPool&) { return false; }
bool SupportsLora(const LinearArgs&, const ThreadPool&) { return false; }
int64_t LoraCopyBytes(const WeightView&, const ThreadPool&) { return 0; }
bool SupportsMergeLora(const WeightView&, const LoraWeight&, const ThreadPool&) { return false; }
void MergeLora(const MergeLoraArgs&, ThreadPool&) { QT_CHECK(false); }
int64_t SplitNormParts(const WeightView&, int64_t, const ThreadPool&) { return 0; }
bool SupportsSplitNormInput(const WeightView&, int64_t, const ThreadPool&) { return false; }

int64_t LinearScratchBytes(const WeightView& w, int64_t rows, const ThreadPool&) {
  return ActivationBytes(w, std::min(rows, MostChunkRows(w)));
}

void Linear(const LinearArgs& args, ThreadPool& pool) {
  const int64_t rows = args.x.dim[0];
  const int64_t chunk_rows = ChunkRows(*args.w, rows);
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    LinearChunk(RowsOf(args, begin, std::min(rows, begin + chunk_rows)), pool);
  }
}

}  // namespace quintet::cpu
