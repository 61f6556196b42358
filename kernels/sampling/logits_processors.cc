#include "kernels/sampling/logits_processors.h"

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void ApplyLogitsProcessors(const LogitsProcessorsArgs& args, Stream& stream) {
  CheckMatrix(args.logits, DType::kF32);
  QT_CHECK(args.history.tokens.dtype == DType::kI32 && args.history.tokens.is_dense());
  const auto inside = [&](const TokenRange& range) {
    return 0 <= range.begin && range.begin <= range.end &&
           static_cast<size_t>(range.end) <= args.tokens.size();
  };
  for (const RowRules& r : args.rules) {
    QT_CHECK(r.row >= 0 && r.row < args.logits.dim[0]);
    QT_CHECK(r.sequence >= 0 && static_cast<size_t>(r.sequence) < args.history.lens.size());
    QT_CHECK_GE(r.ngram, 0);
    QT_CHECK(inside(r.words) && inside(r.forced) && inside(r.banned));
    QT_CHECK(r.keep == 0 || args.raw_logits.defined());
    QT_CHECK(r.log_softmax == 0 || args.log_sums.defined());
  }
  if (args.log_sums.defined()) {
    QT_CHECK(args.log_sums.dtype == DType::kF32 && args.log_sums.is_dense());
    QT_CHECK_GE(args.log_sums.elements(), args.logits.dim[0]);
  }
  if (args.raw_logits.defined()) {
    CheckMatrix(args.raw_logits, DType::kF32);
    QT_CHECK_GE(args.raw_logits.dim[0], args.logits.dim[0]);
    QT_CHECK_EQ(args.raw_logits.dim[1], args.logits.dim[1]);
  }
  QT_CHECK_GE(args.scratch.elements(), LogitsProcessorsScratchBytes(args.logits.dim[1], stream));
  Dispatch<cpu::ApplyLogitsProcessors, cuda::ApplyLogitsProcessors>(stream, args);
}

int64_t LogitsProcessorsScratchBytes(int64_t vocab, const Stream& stream) {
  return Dispatch<cpu::LogitsProcessorsScratchBytes, cuda::LogitsProcessorsScratchBytes>(stream,
                                                                                         vocab);
}

}  // namespace quintet
