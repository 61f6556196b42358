#include "kernels/ops/norm_sums.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void RmsNormSums(const RmsNormSumsArgs& args, Stream& stream) {
  for (const Tensor* tensor : {&args.x, &args.y}) {
    QT_CHECK(tensor->dtype == DType::kF32);
    QT_CHECK_EQ(tensor->rank, 2);
    QT_CHECK_EQ(tensor->stride[1], 1);
  }
  QT_CHECK(args.gamma.dtype == DType::kF32 && args.gamma.is_dense());
  QT_CHECK_EQ(args.gamma.rank, 1);
  QT_CHECK_EQ(args.gamma.dim[0], args.x.dim[1]);
  QT_CHECK_EQ(args.y.dim[1], args.x.dim[1]);
  QT_CHECK_EQ(args.y.dim[0], static_cast<int64_t>(args.ranges.size()));
  for (const RowRange& range : args.ranges) {
    QT_CHECK(0 <= range.begin && range.begin < range.end);
    QT_CHECK_LE(range.end, args.x.dim[0]);
  }
  if (args.ranges.empty()) return;
  Dispatch<cpu::RmsNormSums, cuda::RmsNormSums>(stream, args);
}

}  // namespace quintet
