#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cpu_ops.h"

namespace quintet::cpu {
namespace {

struct Candidate {
  float score;
  int32_t index;
};

void StepGroup(const BeamStepArgs& args, const BeamGroup& g) {
  const float* values = args.values.as<float>() + g.entry * args.values.stride[0];
  const int32_t* indices = args.indices.as<int32_t>() + g.entry * args.indices.stride[0];
  const auto ends = [&](int64_t token) {
    const auto eos = args.eos.subspan(static_cast<size_t>(g.eos_begin),
                                      static_cast<size_t>(g.eos_end - g.eos_begin));
    return std::find(eos.begin(), eos.end(), token) != eos.end();
  };
  std::array<Candidate, kMaxStepCandidates> candidates;
  size_t n = 0;
  const auto add = [&](float value, int32_t index) {
    candidates[n++] = {ends(index % args.vocab) ? value + kEosPenalty : value, index};
  };
  for (int64_t k = 0; k < args.values.dim[1] && indices[k] >= 0; ++k) add(values[k], indices[k]);
  while (n < static_cast<size_t>(g.beams)) add(-std::numeric_limits<float>::infinity(), 0);
  std::stable_sort(candidates.begin(), candidates.begin() + n,
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  for (int32_t beam = 0; beam < g.beams; ++beam) {
    const Candidate& r = candidates[static_cast<size_t>(beam)];
    args.tokens.as<int32_t>()[g.row + beam] = static_cast<int32_t>(r.index % args.vocab);
    args.parents.as<int32_t>()[g.row + beam] = static_cast<int32_t>(r.index / args.vocab);
    args.scores.as<float>()[g.row + beam] = r.score;
  }
}

}  // namespace

void BeamStep(const BeamStepArgs& args, ThreadPool&) {
  for (const BeamGroup& group : args.groups) StepGroup(args, group);
}

void GatherScores(const GatherScoresArgs& args, ThreadPool&) {
  for (size_t r = 0; r < args.from.size(); ++r) {
    const int32_t from = args.from[r];
    args.biases.as<float>()[r] =
        from >= 0 ? args.scores.as<float>()[from] : args.known.as<float>()[r];
  }
}

void ReorderBeams(const ReorderBeamsArgs& args, ThreadPool&) {
  int32_t* const slots = const_cast<int32_t*>(args.slots);  // CPU: the host array is used directly
  std::array<int32_t, kMaxReorderedBeams> before;
  for (const BeamMove& m : args.moves) {
    const int32_t* parents = args.parents.as<int32_t>() + m.row;
    const int32_t moved = args.lens[static_cast<size_t>(m.sequence)] - 1;
    for (int32_t position = 0; position < moved; ++position) {
      int32_t* column = slots + m.sequence * args.slots_stride + position;
      for (int32_t beam = 0; beam < m.beams; ++beam) {
        before[static_cast<size_t>(beam)] = column[beam * args.slots_stride];
      }
      for (int32_t beam = 0; beam < m.beams; ++beam) {
        column[beam * args.slots_stride] = before[static_cast<size_t>(parents[beam])];
      }
    }
  }
}

}  // namespace quintet::cpu
