#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/sampling/selection.cuh"

namespace quintet::cuda {
namespace {

// Kernel arguments: the arrays of BeamStepArgs, as addresses that a kernel can use.
struct BeamStepParams {
  const float* values;
  const int32_t* indices;
  int64_t values_stride, indices_stride;
  int k_max, vocab;
  const BeamGroup* groups;
  const int32_t* eos;
  int32_t* tokens;
  int32_t* parents;
  float* scores;
};

// Selects the best candidates of each BeamGroup as its next beams and writes their tokens, parents
// and scores (BeamStepArgs).
// Shapes: values and indices [entries, k_max] in device or pinned host memory; the candidates of a
// group are in row BeamGroup::entry.
// Numerics: at most one f32 addition per candidate (kEosPenalty); the order (score, then candidate
// index) has no ties.
// Mapping: one block per group. Threads loop over candidates; for each candidate a thread counts
// the candidates that rank before it.
// Bound: latency of one read of pinned memory over PCIe, about 1.5 us.
// Test: tests/kernels/sampling/beam_step_test.cc.
__global__ void BeamStepKernel(const __grid_constant__ BeamStepParams c) {
  __shared__ float scores[kMaxStepCandidates];
  __shared__ int known;
  WaitOnDependentGrids();
  const BeamGroup g = c.groups[blockIdx.x];
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const float* values = c.values + g.entry * c.values_stride;
  const int32_t* indices = c.indices + g.entry * c.indices_stride;
  if (first == 0) known = 0;
  __syncthreads();
  int own = 0;
  for (int k = first; k < c.k_max; k += step) own += indices[k] >= 0 ? 1 : 0;
  if (own > 0) atomicAdd(&known, own);
  const auto index_of = [&](int k) { return k < c.k_max ? max(indices[k], 0) : 0; };
  for (int k = first; k < c.k_max; k += step) {
    const int index = index_of(k);
    float score = indices[k] >= 0 ? values[k] : kMinusInf;
    for (int e = g.eos_begin; e < g.eos_end; ++e) {
      if (c.eos[e] == index % c.vocab) {
        score = __fadd_rn(score, kEosPenalty);
        break;
      }
    }
    scores[k] = score;
  }
  __syncthreads();
  const int n = max(known, g.beams);  // missing candidates rank after all others
  for (int k = first; k < n; k += step) {
    const float score = scores[k];
    int before = 0;
    for (int j = 0; j < n; ++j) {
      before += scores[j] > score || (scores[j] == score && j < k) ? 1 : 0;
    }
    if (before >= g.beams) continue;
    const int index = index_of(k);
    c.tokens[g.row + before] = index % c.vocab;
    c.parents[g.row + before] = index / c.vocab;
    c.scores[g.row + before] = score;
  }
}

// biases[row] = from[row] >= 0 ? scores[from[row]] : known[row]: the running score of each row's
// beam, from the results of the previous step on the device or from the value that the host knows.
// Shapes: scores f32, one per beam of the previous step; known, from and biases [rows].
// Mapping: one thread per row.
// Bound: latency of two dependent reads.
// Test: tests/kernels/sampling/beam_step_test.cc.
__global__ void GatherScoresKernel(const float* scores, const float* known, const int32_t* from,
                                   float* biases, int rows) {
  WaitOnDependentGrids();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  biases[row] = from[row] >= 0 ? scores[from[row]] : known[row];
}

// Kernel arguments: the arrays of ReorderBeamsArgs, as addresses in device memory.
struct ReorderBeamsParams {
  int32_t* slots;
  int64_t slots_stride;
  const int32_t* lens;
  const BeamMove* moves;
  const int32_t* parents;
};

constexpr int kMovedColumns = 128;  // positions per block of ReorderBeamsKernel

// Permutes slot tables in place (ReorderBeamsArgs): each beam gets the KV-cache slots of its parent
// beam, but keeps its own slot for the last position. A BeamMove describes the beams of one
// request.
// Shapes: slots [n, slots_stride] i32.
// Mapping: grid x = BeamMoves, y = blocks of kMovedColumns positions. One thread per position: it
// reads that position's slot of every beam of the request before it writes any of them.
// Bound: latency of three dependent reads.
// Test: tests/kernels/sampling/beam_step_test.cc.
__global__ void __launch_bounds__(kMovedColumns)
    ReorderBeamsKernel(const __grid_constant__ ReorderBeamsParams c) {
  __shared__ int32_t before[kMaxReorderedBeams][kMovedColumns];
  WaitOnDependentGrids();
  const BeamMove m = c.moves[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const int position = static_cast<int>(blockIdx.y) * kMovedColumns + thread;
  if (position >= c.lens[m.sequence] - 1) return;
  int32_t* column = c.slots + m.sequence * c.slots_stride + position;
  for (int beam = 0; beam < m.beams; ++beam) before[beam][thread] = column[beam * c.slots_stride];
  for (int beam = 0; beam < m.beams; ++beam) {
    column[beam * c.slots_stride] = before[c.parents[m.row + beam]][thread];
  }
}

}  // namespace

void BeamStep(const BeamStepArgs& args, CudaStream& stream) {
  if (args.groups.empty()) return;
  const BeamStepParams call{args.values.as<float>(),
                            args.indices.as<int32_t>(),
                            args.values.stride[0],
                            args.indices.stride[0],
                            static_cast<int>(args.values.dim[1]),
                            static_cast<int>(args.vocab),
                            stream.DevicePtr(args.groups.data()),
                            args.eos.empty() ? nullptr : stream.DevicePtr(args.eos.data()),
                            args.tokens.as<int32_t>(),
                            args.parents.as<int32_t>(),
                            args.scores.as<float>()};
  const int threads = std::clamp((call.k_max + 31) / 32 * 32, 32, 256);
  Launch(stream, dim3(static_cast<unsigned>(args.groups.size())),
         dim3(static_cast<unsigned>(threads)), 0, BeamStepKernel, call);
}

void GatherScores(const GatherScoresArgs& args, CudaStream& stream) {
  if (args.from.empty()) return;
  constexpr unsigned kThreads = 128;
  const auto rows = static_cast<unsigned>(args.from.size());
  Launch(stream, dim3((rows + kThreads - 1) / kThreads), dim3(kThreads), 0, GatherScoresKernel,
         args.scores.as<const float>(), args.known.as<const float>(),
         static_cast<const int32_t*>(stream.DevicePtr(args.from.data())), args.biases.as<float>(),
         static_cast<int>(rows));
}

void ReorderBeams(const ReorderBeamsArgs& args, CudaStream& stream) {
  int32_t longest = 1;
  for (const BeamMove& m : args.moves) {
    longest = std::max(longest, args.lens[static_cast<size_t>(m.sequence)]);
  }
  if (args.moves.empty() || longest == 1) return;
  const ReorderBeamsParams call{const_cast<int32_t*>(stream.DevicePtr(args.slots)),
                                args.slots_stride, stream.DevicePtr(args.lens.data()),
                                stream.DevicePtr(args.moves.data()), args.parents.as<int32_t>()};
  const auto blocks = static_cast<unsigned>((longest - 2) / kMovedColumns + 1);
  Launch(stream, dim3(static_cast<unsigned>(args.moves.size()), blocks), dim3(kMovedColumns), 0,
         ReorderBeamsKernel, call);
}

}  // namespace quintet::cuda
