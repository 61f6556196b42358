#include "kernels/sampling/log_prob.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

void CheckShapes(const TargetLogProbArgs& a, const Stream& stream) {
  const WeightView& head = *a.head;
  QT_CHECK(head.defined() && !head.gated());
  QT_CHECK_LT(head.n(), int64_t{1} << 31);
  const int64_t rows = a.hidden.dim[0];
  QT_CHECK_EQ(a.hidden.rank, 2);
  QT_CHECK(IsActivation(a.hidden.dtype, stream));
  QT_CHECK_EQ(a.hidden.dim[1], head.k());
  QT_CHECK(a.hidden.stride[1] == 1 || head.k() == 1);
  if (a.bias.defined()) QT_CHECK_EQ(a.bias.dim[0], head.n());
  QT_CHECK(a.targets.rank == 1 && a.targets.dtype == DType::kI32);
  QT_CHECK_EQ(a.targets.dim[0], rows);
  QT_CHECK(a.log_probs.rank == 1 && a.log_probs.dtype == DType::kF32);
  QT_CHECK_EQ(a.log_probs.dim[0], rows);
  // `targets` can be checked here for both backends: index tensors are in host memory (on a GPU
  // pinned, with a device copy).
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t target = a.targets.as<int32_t>()[r * a.targets.stride[0]];
    QT_CHECK(target >= 0 && target < head.n());
  }
  QT_CHECK_EQ(a.top_tokens.defined(), a.top_log_probs.defined());
  if (!a.top_tokens.defined()) return;
  QT_CHECK(a.top_tokens.rank == 2 && a.top_tokens.dtype == DType::kI32);
  QT_CHECK(a.top_log_probs.rank == 2 && a.top_log_probs.dtype == DType::kF32);
  QT_CHECK_EQ(a.top_tokens.dim[0], rows);
  QT_CHECK_EQ(a.top_log_probs.dim[0], rows);
  QT_CHECK_EQ(a.top_tokens.dim[1], a.top_log_probs.dim[1]);
}

}  // namespace

int64_t TargetLogProbScratchBytes(const WeightView& head, int64_t rows, int64_t top,
                                  const Stream& stream) {
  return Dispatch<cpu::TargetLogProbScratchBytes, cuda::TargetLogProbScratchBytes>(stream, head,
                                                                                   rows, top);
}

void TargetLogProb(const TargetLogProbArgs& args, Stream& stream) {
  CheckShapes(args, stream);
  stream.CountGemm();
  const int64_t rows = args.hidden.dim[0];
  if (rows == 0) return;
  const int64_t top = args.top_tokens.defined() ? args.top_tokens.dim[1] : 0;
  QT_CHECK(args.scratch.defined());
  QT_CHECK_GE(args.scratch.elements() * DTypeBytes(args.scratch.dtype),
              TargetLogProbScratchBytes(*args.head, rows, top, stream));
  Dispatch<cpu::TargetLogProb, cuda::TargetLogProb>(stream, args);
}

}  // namespace quintet
