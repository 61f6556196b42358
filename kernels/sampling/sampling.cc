#include "kernels/sampling/sampling.h"

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void Sample(const SampleArgs& args, Stream& stream) {
  CheckMatrix(args.logits, DType::kF32);
  QT_CHECK_GE(args.logits.dim[1], 1);
  for (const Draw& draw : args.draws) {
    QT_CHECK(draw.row >= 0 && draw.row < args.logits.dim[0]);
    QT_CHECK(draw.lens_at >= 0 && static_cast<size_t>(draw.lens_at) < args.lens.size());
    QT_CHECK_GE(draw.warp.top_k, 0);
    QT_CHECK_EQ(draw.warp.keep, 1);
  }
  QT_CHECK(args.tokens.dtype == DType::kI32 && args.tokens.is_dense());
  QT_CHECK_GE(args.tokens.elements(), static_cast<int64_t>(args.draws.size()));
  if (args.next_tokens.defined()) {
    QT_CHECK(args.next_tokens.dtype == DType::kI32 && args.next_tokens.is_dense());
    QT_CHECK_GE(args.next_tokens.elements(), args.logits.dim[0]);
  }
  QT_CHECK_GE(args.scratch.elements(), SampleScratchBytes(args.logits.dim[1], stream));
  Dispatch<cpu::Sample, cuda::Sample>(stream, args);
}

int64_t SampleScratchBytes(int64_t vocab, const Stream& stream) {
  return Dispatch<cpu::SampleScratchBytes, cuda::SampleScratchBytes>(stream, vocab);
}

}  // namespace quintet
