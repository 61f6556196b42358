#include "kernels/linear/linear.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/linear/lora.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

// The dtype of x with a split RMSNorm, and of NormOutput::scaled.
DType SplitNormType(const WeightView& w) {
  return IsQuantized(w.type()) ? DType::kBF16 : WeightDType(w.type());
}

void CheckNextNorm(const LinearArgs& a, const Stream& stream) {
  const WeightView& w = *a.w;
  const NormOutput& norm = a.next_norm;
  const int64_t rows = a.x.dim[0], parts = SplitNormParts(w, rows, stream);
  QT_CHECK(parts > 0 && a.y.dtype == DType::kF32 && a.kv.cache == nullptr);
  QT_CHECK(a.x.dtype == SplitNormType(w));
  QT_CHECK(norm.gamma.dtype == DType::kF32 && norm.gamma.is_dense());
  QT_CHECK_EQ(norm.gamma.dim[0], w.n());
  QT_CHECK(norm.scaled.rank == 2 && norm.scaled.dtype == SplitNormType(w));
  QT_CHECK(norm.scaled.dim[0] == rows && norm.scaled.dim[1] == w.n());
  QT_CHECK_EQ(norm.scaled.stride[1], 1);
  QT_CHECK(norm.squares.rank == 2 && norm.squares.dtype == DType::kF32);
  QT_CHECK(norm.squares.dim[0] == rows && norm.squares.dim[1] == parts);
  QT_CHECK(norm.squares.is_dense());
}

void CheckLora(const LinearArgs& a, const Stream& stream) {
  QT_CHECK(SupportsLora(a, stream));
  if (a.lora.adapters.empty()) {
    QT_CHECK_GE(a.lora.adapter, 0);
    QT_CHECK_GE(a.lora.copy.elements(), LoraCopyBytes(*a.w, stream));
  } else {
    QT_CHECK_EQ(static_cast<int64_t>(a.lora.adapters.size()), a.x.dim[0]);
    QT_CHECK(a.lora.one_adapter ||
             a.lora.words.elements() >= LoraWordBytes(*a.lora.weight, stream));
  }
}

void CheckShapes(const LinearArgs& a, const Stream& stream) {
  const WeightView& w = *a.w;
  QT_CHECK(w.defined());
  const int64_t rows = a.x.dim[0];
  QT_CHECK_EQ(a.x.rank, 2);
  QT_CHECK(IsActivation(a.x.dtype, stream));
  QT_CHECK_EQ(a.x.dim[1], w.k());
  QT_CHECK(a.x.stride[1] == 1 || w.k() == 1);
  if (a.bias.defined()) {
    QT_CHECK_EQ(a.bias.rank, 1);
    QT_CHECK_EQ(a.bias.dim[0], w.n());
    QT_CHECK(a.bias.stride[0] == 1 || w.n() == 1);
  }
  if (a.row_bias.defined()) {
    QT_CHECK(a.row_bias.rank == 2 && IsActivation(a.row_bias.dtype, stream));
    QT_CHECK(a.row_bias.dtype == a.y.dtype || a.y.dtype == DType::kF32);
    QT_CHECK(a.row_bias.dim[0] == rows && a.row_bias.dim[1] == w.n());
    QT_CHECK_EQ(a.row_bias.stride[1], 1);
    QT_CHECK(!a.norm_gamma.defined() && !a.x_squares.defined() && !a.next_norm.gamma.defined());
    QT_CHECK(a.scatter.base == nullptr && a.kv.cache == nullptr);
  }
  if (a.x_squares.defined()) {
    QT_CHECK(SupportsSplitNormInput(w, rows, stream) && !a.norm_gamma.defined());
    QT_CHECK(a.x.dtype == SplitNormType(w));
    QT_CHECK(a.x_squares.rank == 2 && a.x_squares.is_dense());
    QT_CHECK(a.x_squares.dtype == DType::kF32 && a.x_squares.dim[0] == rows);
  }
  if (a.lora.weight != nullptr) CheckLora(a, stream);
  const int64_t columns = cpu::OutputColumns(w);
  if (a.scatter.base != nullptr) {
    QT_CHECK(!a.y.defined() && !a.residual.defined());
    QT_CHECK(!a.x_squares.defined() && !a.next_norm.gamma.defined());
    QT_CHECK(a.scatter.dtype != DType::kF8 ||
             (stream.backend() != Backend::kCpu && w.type() != WeightType::kF32));
    QT_CHECK_GT(a.scatter.chunk, 0);
    QT_CHECK_EQ(columns % a.scatter.chunk, 0);
    return;
  }
  QT_CHECK_EQ(a.y.rank, 2);
  QT_CHECK(IsActivation(a.y.dtype, stream));
  QT_CHECK_EQ(a.y.dim[0], rows);
  QT_CHECK_EQ(a.y.dim[1], columns);
  QT_CHECK(a.y.stride[1] == 1 || columns == 1);
  if (a.kv.cache != nullptr) {
    const int64_t inner = a.kv.cache->heads * a.kv.cache->head_dim;
    QT_CHECK(SupportsKvStore(w, rows, stream) && a.kv.cache->Accepts(a.y.dtype));
    QT_CHECK(!w.gated() && columns == 3 * inner);
    QT_CHECK_EQ(static_cast<int64_t>(a.kv.slots.size()), rows);
  }
  if (a.next_norm.gamma.defined()) CheckNextNorm(a, stream);
  if (a.residual.defined()) {
    QT_CHECK_EQ(a.residual.rank, 2);
    QT_CHECK(a.residual.dtype == a.y.dtype);
    QT_CHECK_EQ(a.residual.dim[0], rows);
    QT_CHECK_EQ(a.residual.dim[1], columns);
    QT_CHECK(a.residual.stride[1] == 1 || columns == 1);
  }
}

}  // namespace

WeightView::WeightView(const void* values, int64_t n, int64_t k, WeightType type, bool gated)
    : n_(n),
      k_(k),
      type_(type),
      gated_(gated),
      panel_bytes_(n * k * DTypeBytes(WeightDType(type))),
      panels_(values) {
  QT_CHECK(n > 0 && k > 0 && (!gated || n % 2 == 0));
  QT_CHECK(!IsQuantized(type));
}

const char* WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kI8:
      return "int8";
    case WeightType::kF8:
      return "fp8";
    case WeightType::kI8W8A8:
      return "int8-w8a8";
    case WeightType::kF8W8A8:
      return "fp8-w8a8";
    default:
      return DTypeName(WeightDType(type));
  }
}

DType WeightDType(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return DType::kF32;
    case WeightType::kBF16:
      return DType::kBF16;
    case WeightType::kF16:
      return DType::kF16;
    case WeightType::kI8:
    case WeightType::kI8W8A8:
      return DType::kI8;
    case WeightType::kF8:
    case WeightType::kF8W8A8:
      return DType::kF8;
  }
  return DType::kF32;
}

bool WeightTypeSupported(WeightType type, const Device* device) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kI8:
      return true;
    case WeightType::kBF16:
      return device != nullptr || cpu::Bf16PanelKernel().multiply != nullptr;
    case WeightType::kF16:
    case WeightType::kF8:
      return device != nullptr;
    case WeightType::kI8W8A8:
    case WeightType::kF8W8A8:
      return device != nullptr && device->hopper();
  }
  return false;
}

DType ActivationType(WeightType type, const Device* device) {
  if (device == nullptr || type == WeightType::kF32) return DType::kF32;
  return type == WeightType::kF16 ? DType::kF16 : DType::kBF16;
}

bool SupportsFusedNorm(const LinearArgs& args, const Stream& stream) {
  return Dispatch<cpu::SupportsFusedNorm, cuda::SupportsFusedNorm>(stream, args);
}

bool SupportsLora(const LinearArgs& args, const Stream& stream) {
  if (args.row_bias.defined() || args.lora.weight == nullptr) return false;
  return Dispatch<cpu::SupportsLora, cuda::SupportsLora>(stream, args);
}

bool SupportsKvStore(const WeightView& w, int64_t rows, const Stream& stream) {
  return Dispatch<cpu::SupportsKvStore, cuda::SupportsKvStore>(stream, w, rows);
}

int64_t SplitNormParts(const WeightView& w, int64_t rows, const Stream& stream) {
  return Dispatch<cpu::SplitNormParts, cuda::SplitNormParts>(stream, w, rows);
}

bool SupportsSplitNormInput(const WeightView& w, int64_t rows, const Stream& stream) {
  return Dispatch<cpu::SupportsSplitNormInput, cuda::SupportsSplitNormInput>(stream, w, rows);
}

int64_t LinearScratchBytes(const WeightView& w, int64_t rows, const Stream& stream) {
  return Dispatch<cpu::LinearScratchBytes, cuda::LinearScratchBytes>(stream, w, rows);
}

void Linear(const LinearArgs& args, Stream& stream) {
  CheckShapes(args, stream);
  stream.CountGemm();
  Dispatch<cpu::Linear, cuda::Linear>(stream, args);
}

}  // namespace quintet
