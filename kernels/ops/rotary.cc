#include "kernels/ops/rotary.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void Rotary(const RotaryArgs& args, Stream& stream) {
  QT_CHECK(IsActivation(args.x.dtype, stream));
  QT_CHECK_EQ(args.x.rank, 3);
  QT_CHECK_EQ(args.x.stride[2], 1);
  QT_CHECK(IsActivation(args.y.dtype, stream) ||
           (args.y.dtype == DType::kF8 && stream.backend() == Backend::kCuda));
  QT_CHECK(args.y.dtype == args.x.dtype || args.x.dtype == DType::kF32);
  QT_CHECK_EQ(args.y.rank, 3);
  QT_CHECK_EQ(args.y.stride[2], 1);
  for (int i = 0; i < 3; ++i) QT_CHECK_EQ(args.y.dim[i], args.x.dim[i]);
  QT_CHECK_LE(args.x.dim[2], 256);
  QT_CHECK(args.positions.dtype == DType::kI32);
  QT_CHECK_EQ(args.positions.rank, 1);
  QT_CHECK_EQ(args.positions.dim[0], args.x.dim[0]);
  QT_CHECK(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.x.dim[2]);
  QT_CHECK(args.xpos_sign == 1 || args.xpos_sign == -1);
  Dispatch<cpu::Rotary, cuda::Rotary>(stream, args);
}

}  // namespace quintet
