#include "kernels/sampling/candidate_logits.h"

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void CandidateLogits(const CandidateLogitsArgs& args, Stream& stream) {
  const int64_t n = static_cast<int64_t>(args.first_rows.size());
  QT_CHECK_EQ(static_cast<int64_t>(args.from_raw.size()), n);
  for (const Tensor* t : {&args.logits, &args.raw_logits}) {
    if (!t->defined()) continue;
    CheckMatrix(*t, DType::kF32);
    QT_CHECK_EQ(t->dim[1], args.logits.dim[1]);
  }
  CheckCandidates(args.values, args.indices);
  QT_CHECK_EQ(args.values.dim[0], n);
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    QT_CHECK(args.first_rows[at] >= 0 && args.first_rows[at] < args.logits.dim[0]);
    QT_CHECK(args.from_raw[at] == 0 || args.raw_logits.defined());
  }
  Dispatch<cpu::CandidateLogits, cuda::CandidateLogits>(stream, args);
}

}  // namespace quintet
