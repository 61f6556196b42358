#include "kernels/sampling/beam_sampling.h"

#include <limits>

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void SampleBeams(const SampleBeamsArgs& args, Stream& stream) {
  CheckMatrix(args.logits, DType::kF32);
  const int64_t rows = args.logits.dim[0], vocab = args.logits.dim[1];
  QT_CHECK_GE(vocab, 1);
  QT_CHECK(args.row_bias.dtype == DType::kF32);
  QT_CHECK_EQ(args.row_bias.rank, 1);
  QT_CHECK_GE(args.row_bias.dim[0], rows);
  CheckCandidates(args.values, args.indices);
  for (const BeamDraw& d : args.draws) {
    QT_CHECK(d.draw.row >= 0 && d.rows >= 1 && d.draw.row + d.rows <= rows);
    QT_CHECK_LE(d.rows * vocab, int64_t{std::numeric_limits<int32_t>::max()});
    QT_CHECK(d.draw.lens_at >= 0 && static_cast<size_t>(d.draw.lens_at) < args.lens.size());
    QT_CHECK(d.draw.warp.top_k >= 0 && d.draw.warp.keep >= 1);
    QT_CHECK(d.entry >= 0 && d.entry < args.values.dim[0]);
    QT_CHECK(d.k >= 1 && d.k <= args.values.dim[1]);
  }
  QT_CHECK_GE(args.scratch.elements(),
              SampleBeamsScratchBytes(rows, vocab, args.values.dim[1], stream));
  Dispatch<cpu::SampleBeams, cuda::SampleBeams>(stream, args);
}

int64_t SampleBeamsScratchBytes(int64_t rows, int64_t vocab, int64_t k_max, const Stream& stream) {
  return Dispatch<cpu::SampleBeamsScratchBytes, cuda::SampleBeamsScratchBytes>(stream, rows, vocab,
                                                                               k_max);
}

}  // namespace quintet
