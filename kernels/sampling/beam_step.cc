#include "kernels/sampling/beam_step.h"

#include "kernels/base/shape_checks.h"
#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void BeamStep(const BeamStepArgs& args, Stream& stream) {
  CheckCandidates(args.values, args.indices);
  QT_CHECK_LE(args.values.dim[1], kMaxStepCandidates);
  QT_CHECK_GE(args.vocab, 1);
  CheckVector(args.tokens, DType::kI32);
  CheckVector(args.parents, DType::kI32);
  CheckVector(args.scores, DType::kF32);
  for (const BeamGroup& g : args.groups) {
    QT_CHECK(g.entry >= 0 && g.entry < args.values.dim[0]);
    QT_CHECK(g.beams >= 1 && g.beams <= args.values.dim[1]);
    for (const Tensor* t : {&args.tokens, &args.parents, &args.scores}) {
      QT_CHECK(g.row >= 0 && g.row + g.beams <= t->dim[0]);
    }
    QT_CHECK(0 <= g.eos_begin && g.eos_begin <= g.eos_end);
    QT_CHECK_LE(static_cast<size_t>(g.eos_end), args.eos.size());
  }
  Dispatch<cpu::BeamStep, cuda::BeamStep>(stream, args);
}

void GatherScores(const GatherScoresArgs& args, Stream& stream) {
  for (const Tensor* t : {&args.scores, &args.known, &args.biases}) CheckVector(*t, DType::kF32);
  QT_CHECK_GE(args.known.dim[0], static_cast<int64_t>(args.from.size()));
  QT_CHECK_GE(args.biases.dim[0], static_cast<int64_t>(args.from.size()));
  for (const int32_t from : args.from) QT_CHECK_LT(from, args.scores.dim[0]);
  Dispatch<cpu::GatherScores, cuda::GatherScores>(stream, args);
}

void ReorderBeams(const ReorderBeamsArgs& args, Stream& stream) {
  CheckVector(args.parents, DType::kI32);
  for (const BeamMove& m : args.moves) {
    QT_CHECK(m.sequence >= 0 && m.beams >= 1 && m.beams <= kMaxReorderedBeams);
    QT_CHECK_LE(static_cast<size_t>(m.sequence + m.beams), args.lens.size());
    QT_CHECK(m.row >= 0 && m.row + m.beams <= args.parents.dim[0]);
    const int32_t len = args.lens[static_cast<size_t>(m.sequence)];
    QT_CHECK(len >= 1 && len <= args.slots_stride);
    for (int32_t beam = 0; beam < m.beams; ++beam) {
      QT_CHECK_EQ(args.lens[static_cast<size_t>(m.sequence + beam)], len);
    }
  }
  Dispatch<cpu::ReorderBeams, cuda::ReorderBeams>(stream, args);
}

}  // namespace quintet
