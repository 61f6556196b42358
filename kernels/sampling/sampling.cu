// Sampling on a GPU: for each draw, one block applies the logits warpers
// (kernels/sampling/warper.cuh) and draws one token.
#include "kernels/base/random.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/sampling/warper.cuh"

namespace quintet::cuda {
namespace {

// Kernel arguments: the arrays of SampleArgs, as addresses in device memory.
struct SampleParams {
  LogitRows logits;
  const Draw* draws;
  const int32_t* lens;
  int32_t* tokens;
  int32_t* next_tokens;  // or null
};

// Computes tokens[i] of SampleArgs: applies the logits warpers to the row of draw i and draws one
// of the surviving tokens.
// Shapes: logits [rows, vocab] f32.
// Numerics: logit / temperature and exponentials in f32. The weight of a token is its exponential
// as an integer, in units of 2^-40 of the greatest exponential; 64-bit sums of weights are exact.
// The entropy (for typical_p) is summed in f64.
// Mapping: one block per draw. If the top_k tokens fit in shared memory, the row is read twice.
// Otherwise it is read once, plus one to four times per enabled filter, plus twice for the draw
// (more often if thousands of values tie).
// Bound: latency: 2 * vocab * 4 bytes through one SM (about 2 x 2.5 us for a vocabulary of 32128)
// and about 80 barriers. Measurements: kernels/sampling/NOTES.md.
// Test: tests/kernels/sampling/sampling_test.cc.
__global__ void __launch_bounds__(warping::kThreads)
    SampleKernel(const __grid_constant__ SampleParams c) {
  __shared__ warping::WarperShared s;
  WaitOnDependentGrids();
  const Draw draw = c.draws[blockIdx.x];
  const DrawId draw_id{draw.seed, draw.sequence, static_cast<uint32_t>(c.lens[draw.lens_at])};
  warping::RowWarper warper(c.logits, draw.row, draw.warp, s);
  const int token = warper.Warp() ? warper.DrawToken(UniformAt(draw_id)) : 0;
  if (threadIdx.x != 0) return;
  c.tokens[blockIdx.x] = token;
  if (c.next_tokens != nullptr) c.next_tokens[draw.row] = token;
}

}  // namespace

void Sample(const SampleArgs& args, CudaStream& stream) {
  if (args.draws.empty()) return;
  const SampleParams call{MakeLogitRows(args.logits), stream.DevicePtr(args.draws.data()),
                          stream.DevicePtr(args.lens.data()), args.tokens.as<int32_t>(),
                          args.next_tokens.as<int32_t>()};
  Launch(stream, dim3(static_cast<unsigned>(args.draws.size())), dim3(warping::kThreads), 0,
         SampleKernel, call);
}

int64_t SampleScratchBytes(int64_t, const CudaStream&) { return 0; }

}  // namespace quintet::cuda
