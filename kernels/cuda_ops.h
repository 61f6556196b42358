// CUDA implementations of the ops. The public functions have already checked the arguments. Tensors
// are in device memory; spans and index Tensors are in pinned host memory with a device copy
// (kernels/runtime/stream.h).
//
// A launcher only enqueues kernels. It never copies, allocates or waits, so that a step can be
// captured as a CUDA graph. Lengths may change from step to step: kernels read them from the device
// copies, and the host values are upper bounds that determine the grid sizes.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/lora.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/norm_sums.h"
#include "kernels/ops/pooling.h"
#include "kernels/ops/rotary.h"
#include "kernels/runtime/cuda_stream.h"
#include "kernels/sampling/beam_sampling.h"
#include "kernels/sampling/beam_step.h"
#include "kernels/sampling/candidate_logits.h"
#include "kernels/sampling/log_prob.h"
#include "kernels/sampling/logits_processors.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/selection.h"

namespace quintet::cuda {

using Executor = CudaStream;

#include "kernels/backend_ops-inl.h"

}  // namespace quintet::cuda
