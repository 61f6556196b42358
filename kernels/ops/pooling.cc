#include "kernels/ops/pooling.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void PoolRows(const PoolRowsArgs& args, Stream& stream) {
  for (const Tensor* tensor : {&args.x, &args.y}) {
    QT_CHECK(tensor->dtype == DType::kF32 && tensor->is_dense());
    QT_CHECK_EQ(tensor->rank, 2);
  }
  QT_CHECK_EQ(args.x.dim[1], args.y.dim[1]);
  for (const PoolSegment& segment : args.segments) {
    QT_CHECK(0 <= segment.begin && segment.begin < segment.end);
    QT_CHECK_LE(segment.end, args.x.dim[0]);
    QT_CHECK(0 <= segment.y_row && segment.y_row < args.y.dim[0]);
    QT_CHECK_GE(segment.first_weight, 1);
  }
  Dispatch<cpu::PoolRows, cuda::PoolRows>(stream, args);
}

}  // namespace quintet
