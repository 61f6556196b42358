#include "kernels/ops/norm.h"

#include <span>

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

void CheckRows(const Tensor& x, const Tensor& y, std::span<const int32_t> rows,
               const Stream& stream) {
  QT_CHECK(IsActivation(x.dtype, stream) && IsActivation(y.dtype, stream));
  QT_CHECK_EQ(x.rank, 2);
  QT_CHECK_EQ(y.rank, 2);
  QT_CHECK_EQ(rows.empty() ? x.dim[0] : static_cast<int64_t>(rows.size()), y.dim[0]);
  for (const int32_t row : rows) QT_CHECK(row >= 0 && row < x.dim[0]);
  QT_CHECK_EQ(x.dim[1], y.dim[1]);
  QT_CHECK_GE(x.dim[1], 1);
  QT_CHECK_EQ(x.stride[1], 1);
  QT_CHECK_EQ(y.stride[1], 1);
}

void CheckChannels(const Tensor& channels, int64_t d) {
  QT_CHECK(channels.dtype == DType::kF32);
  QT_CHECK_EQ(channels.rank, 1);
  QT_CHECK_EQ(channels.dim[0], d);
  QT_CHECK_EQ(channels.stride[0], 1);
}

}  // namespace

void RmsNorm(const RmsNormArgs& args, Stream& stream) {
  CheckRows(args.x, args.y, args.rows, stream);
  CheckChannels(args.gamma, args.x.dim[1]);
  Dispatch<cpu::RmsNorm, cuda::RmsNorm>(stream, args);
}

void LayerNorm(const LayerNormArgs& args, Stream& stream) {
  CheckRows(args.x, args.y, args.rows, stream);
  CheckChannels(args.gamma, args.x.dim[1]);
  CheckChannels(args.beta, args.x.dim[1]);
  Dispatch<cpu::LayerNorm, cuda::LayerNorm>(stream, args);
}

}  // namespace quintet
