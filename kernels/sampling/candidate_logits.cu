#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

// Kernel arguments: the arrays of CandidateLogitsArgs, as addresses in device memory.
struct CandidateLogitsParams {
  const float* logits;
  const float* raw_logits;
  int64_t logits_stride, raw_logits_stride;
  int vocab;
  const int32_t* first_rows;
  const int32_t* from_raw;
  const int32_t* indices;
  int64_t indices_stride;
  float* values;
  int64_t values_stride;
  int k;
};

// values[i, j] = the logit of candidate indices[i, j] of request i (CandidateLogitsArgs).
// Shapes: indices and values [n, k].
// Mapping: one block per request; threads loop over candidates.
// Bound: latency of two dependent reads.
// Test: tests/kernels/sampling/candidate_logits_test.cc.
__global__ void CandidateLogitsKernel(const __grid_constant__ CandidateLogitsParams c) {
  WaitOnDependentGrids();
  const int64_t entry = blockIdx.x;
  const bool raw = c.from_raw[entry] != 0;
  const float* from = raw ? c.raw_logits : c.logits;
  const int64_t stride = raw ? c.raw_logits_stride : c.logits_stride;
  for (int j = static_cast<int>(threadIdx.x); j < c.k; j += static_cast<int>(blockDim.x)) {
    const int index = c.indices[entry * c.indices_stride + j];
    const int64_t row = c.first_rows[entry] + index / c.vocab;
    c.values[entry * c.values_stride + j] = index < 0 ? 0.0f : from[row * stride + index % c.vocab];
  }
}

}  // namespace

void CandidateLogits(const CandidateLogitsArgs& args, CudaStream& stream) {
  if (args.first_rows.empty()) return;
  const CandidateLogitsParams call{args.logits.as<float>(),
                                   args.raw_logits.as<float>(),
                                   args.logits.stride[0],
                                   args.raw_logits.stride[0],
                                   static_cast<int>(args.logits.dim[1]),
                                   stream.DevicePtr(args.first_rows.data()),
                                   stream.DevicePtr(args.from_raw.data()),
                                   args.indices.as<int32_t>(),
                                   args.indices.stride[0],
                                   args.values.as<float>(),
                                   args.values.stride[0],
                                   static_cast<int>(args.indices.dim[1])};
  const int threads = std::clamp((call.k + 31) / 32 * 32, 32, 256);
  Launch(stream, dim3(static_cast<unsigned>(args.first_rows.size())),
         dim3(static_cast<unsigned>(threads)), 0, CandidateLogitsKernel, call);
}

}  // namespace quintet::cuda
