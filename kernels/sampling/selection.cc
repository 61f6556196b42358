#include "kernels/sampling/selection.h"

#include <algorithm>
#include <limits>

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

void CheckPerRow(const Tensor& t, int64_t rows) {
  QT_CHECK(t.dtype == DType::kF32);
  QT_CHECK_EQ(t.rank, 1);
  QT_CHECK_GE(t.dim[0], rows);
}

}  // namespace

void LogSumExp(const LogSumExpArgs& args, Stream& stream) {
  CheckMatrix(args.logits, DType::kF32);
  CheckPerRow(args.out, args.logits.dim[0]);
  Dispatch<cpu::LogSumExp, cuda::LogSumExp>(stream, args);
}

void TopK(const TopKArgs& args, Stream& stream) {
  CheckMatrix(args.scores, DType::kF32);
  CheckCandidates(args.values, args.indices);
  const int64_t rows = args.scores.dim[0], vocab = args.scores.dim[1];
  const int64_t n = static_cast<int64_t>(args.k.size()), k_max = args.values.dim[1];
  if (args.row_shift.defined()) CheckPerRow(args.row_shift, rows);
  if (args.row_bias.defined()) CheckPerRow(args.row_bias, rows);
  if (args.log_sums.defined()) CheckPerRow(args.log_sums, rows);
  if (!args.log_softmax.empty()) {
    QT_CHECK(args.log_sums.defined());
    QT_CHECK_EQ(static_cast<int64_t>(args.log_softmax.size()), n);
  }
  QT_CHECK_EQ(args.values.dim[0], n);
  if (args.best.defined()) {
    QT_CHECK(args.best.dtype == DType::kI32 && args.best.is_dense());
    QT_CHECK_GE(args.best.elements(), n);
  }
  QT_CHECK_EQ(static_cast<int64_t>(args.row_offsets.size()), n + 1);
  for (size_t i = 0; i < args.k.size(); ++i) {
    QT_CHECK(args.k[i] >= 1 && args.k[i] <= k_max);
    QT_CHECK(0 <= args.row_offsets[i] && args.row_offsets[i] <= args.row_offsets[i + 1]);
    QT_CHECK_LE((args.row_offsets[i + 1] - args.row_offsets[i]) * vocab,
                int64_t{std::numeric_limits<int32_t>::max()});
  }
  QT_CHECK_LE(args.row_offsets.back(), rows);
  QT_CHECK_GE(args.scratch.elements(), TopKScratchBytes(rows, vocab, k_max, stream));
  Dispatch<cpu::TopK, cuda::TopK>(stream, args);
}

int64_t TopKScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream) {
  return Dispatch<cpu::TopKScratchBytes, cuda::TopKScratchBytes>(stream, rows, vocab, k_max);
}

}  // namespace quintet
