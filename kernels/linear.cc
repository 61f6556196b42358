#include "kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/linear_cpu.h"

namespace quintet {
namespace {

// int32 sums of u8 x i8 products must not overflow: 255 * 127 * k < 2^31.
constexpr int64_t kMaxI8K = 66000;

void CheckShapes(const LinearArgs& a) {
  const LinearWeight& w = *a.w;
  QT_CHECK(w.defined());
  const int64_t rows = a.x.dim[0];
  QT_CHECK_EQ(a.x.rank, 2);
  QT_CHECK(a.x.dtype == DType::kF32);
  QT_CHECK_EQ(a.x.dim[1], w.k());
  QT_CHECK(a.x.stride[1] == 1 || w.k() == 1);
  if (a.bias.defined()) {
    QT_CHECK_EQ(a.bias.rank, 1);
    QT_CHECK_EQ(a.bias.dim[0], w.n());
    QT_CHECK(a.bias.stride[0] == 1 || w.n() == 1);
  }
  const int64_t columns = cpu::OutputColumns(w);
  if (a.scatter.base != nullptr) {
    QT_CHECK(!a.y.defined() && !a.residual.defined());
    QT_CHECK_GT(a.scatter.chunk, 0);
    QT_CHECK_EQ(columns % a.scatter.chunk, 0);
    return;
  }
  QT_CHECK_EQ(a.y.rank, 2);
  QT_CHECK_EQ(a.y.dim[0], rows);
  QT_CHECK_EQ(a.y.dim[1], columns);
  QT_CHECK(a.y.stride[1] == 1 || columns == 1);
  if (a.residual.defined()) {
    QT_CHECK_EQ(a.residual.rank, 2);
    QT_CHECK_EQ(a.residual.dim[0], rows);
    QT_CHECK_EQ(a.residual.dim[1], columns);
    QT_CHECK(a.residual.stride[1] == 1 || columns == 1);
  }
}

cpu::Epilogue MakeEpilogue(const LinearArgs& a, const cpu::Activations& x) {
  cpu::Epilogue e;
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

absl::StatusOr<LinearWeight> LinearWeight::Describe(int64_t n, int64_t k, WeightType type,
                                                    bool gated) {
  QT_CHECK(n > 0 && k > 0);
  QT_CHECK(!gated || n % 2 == 0);
  QT_CHECK(type != WeightType::kI8 || k <= kMaxI8K);
  LinearWeight w;
  w.n_ = n;
  w.k_ = k;
  w.type_ = type;
  w.gated_ = gated;
  const int64_t panels = cpu::Panels(w);
  const int64_t panel_bytes = cpu::Groups(w) * cpu::kPanelColumns * cpu::kUnitBytes;
  if (panels > std::numeric_limits<int64_t>::max() / 2 / panel_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a weight of ", n, " x ", k, " values"));
  }
  w.panel_bytes_ = panels * panel_bytes;
  w.channel_bytes_ = type == WeightType::kI8 ? panels * cpu::kPanelColumns * 8 : 0;
  return w;
}

absl::StatusOr<LinearWeight> LinearWeight::Allocate(int64_t n, int64_t k, WeightType type,
                                                    bool gated) {
  absl::StatusOr<LinearWeight> w = Describe(n, k, type, gated);
  if (!w.ok()) return w;
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(w->panel_bytes_);
  if (!buffer.ok()) return buffer.status();
  w->panels_ = *std::move(buffer);
  // Channels past n are never packed.
  const int64_t last = w->panel_bytes_ / cpu::Panels(*w);
  std::memset(w->panels_.as<char>() + w->panel_bytes_ - last, 0, static_cast<size_t>(last));
  if (type == WeightType::kI8) {
    buffer = Buffer::Allocate(w->channel_bytes_);
    if (!buffer.ok()) return buffer.status();
    w->channels_ = *std::move(buffer);
    std::memset(w->channels_.data(), 0, static_cast<size_t>(w->channel_bytes_));
  }
  return w;
}

bool WeightTypeSupported(WeightType type) {
  return type != WeightType::kBF16 || cpu::Bf16PanelProduct() != nullptr;
}

int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream&) {
  return cpu::ActivationBytes(w, rows);
}

void Linear(const LinearArgs& args, Stream& stream) {
  CheckShapes(args);
  stream.CountProduct();
  const LinearWeight& w = *args.w;
  const int64_t rows = args.x.dim[0];
  if (rows == 0) return;
  const cpu::Activations x = cpu::ConvertActivations(w, args.x, args.scratch, stream.pool());
  const cpu::Epilogue epilogue = MakeEpilogue(args, x);
  const cpu::PanelProductFunction product = cpu::ChoosePanelProduct(w.type());
  const int64_t groups = cpu::Groups(w);
  const int64_t columns = cpu::ColumnsPerPanel(w);
  const int64_t panels = cpu::Panels(w);
  const int64_t block_rows = cpu::BlockRows(rows, groups * cpu::kUnitBytes);
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  stream.pool().ParallelFor(panels * blocks, [&](int64_t task, int) {
    alignas(64) char tile[cpu::kTileRows * cpu::kPanelColumns * cpu::kUnitBytes];
    const int64_t panel = task % panels;
    const int64_t row = task / panels * block_rows;
    cpu::PanelProduct p;
    p.x = static_cast<const char*>(x.data) + row * x.row_bytes;
    p.x_row_bytes = x.row_bytes;
    p.panel = static_cast<const char*>(w.panels()) +
              panel * groups * cpu::kPanelColumns * cpu::kUnitBytes;
    p.groups = groups;
    p.rows = std::min(block_rows, rows - row);
    p.tile = tile;
    product(p);
    cpu::RunEpilogue(epilogue, tile, panel, row, p.rows, panel * columns);
  });
}

}  // namespace quintet
