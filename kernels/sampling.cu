// Sampling on a GPU: one block draws one token (kernels/warper.cuh).
#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"
#include "kernels/draws.h"
#include "kernels/warper.cuh"

namespace quintet::cuda {
namespace {

struct SampleCall {
  LogitRows logits;
  const Draw* draws;
  const int32_t* lens;
  int32_t* tokens;
  int32_t* chosen;  // or null
};

// What: tokens[i] of SampleArgs.
// Shapes: logits [rows, vocab] f32.
// Math: values / temperature and their exponentials in f32, weights in units of 2^-40 of the
// greatest, sums exact in 64 bits; entropy in f64, in an order of its own.
// Map: one block a draw. The row is read twice where the k best fit into shared memory, otherwise
// once and then twice for each filter and for the draw (more where thousands of values are equal).
// Bound: latency: 2 x vocab * 4 bytes through one multiprocessor, about 2 x 2.5 us for 32128, and
// some 80 barriers.
// Versions, 32 rows on an H200: 1, as here: predicted 11 us for 32128 with the 50 best. Whole steps
// with a repetition penalty besides take 16 us more than those that only rank (32128) and 30 us
// more (50257); with top_p over the whole row 96 and 171 us more.
// Spec: tests/kernels/sampling_test.cc.
__global__ void __launch_bounds__(warping::kThreads)
    SampleKernel(const __grid_constant__ SampleCall c) {
  __shared__ warping::WarperShared s;
  WaitForInputs();
  const Draw draw = c.draws[blockIdx.x];
  const DrawPlace place{draw.seed, draw.sequence, static_cast<uint32_t>(c.lens[draw.lens_at])};
  warping::RowWarper warper(c.logits, draw.row, draw.warp, s);
  const int token = warper.Warp() ? warper.DrawToken(UnitAt(place)) : 0;
  if (threadIdx.x != 0) return;
  c.tokens[blockIdx.x] = token;
  if (c.chosen != nullptr) c.chosen[draw.row] = token;
}

}  // namespace

void Sample(const SampleArgs& args, Stream& stream) {
  if (args.draws.empty()) return;
  const SampleCall call{LogitRowsOf(args.logits), stream.Twin(args.draws.data()),
                        stream.Twin(args.lens.data()), args.tokens.as<int32_t>(),
                        args.chosen.as<int32_t>()};
  Launch(stream, dim3(static_cast<unsigned>(args.draws.size())), dim3(warping::kThreads), 0,
         SampleKernel, call);
}

int64_t SampleScratchBytes(int64_t, const Stream&) { return 0; }

}  // namespace quintet::cuda
