// CUDA implementations of the ops. The public functions have already checked the arguments. Tensors
// are in device memory; spans and index Tensors are in pinned host memory with a device copy
// (kernels/stream.h).
//
// A launcher only enqueues kernels. It never copies, allocates or waits, so that a step can be
// captured as a CUDA graph. Kernels read lengths that change from step to step from the device
// copies; the host values are upper bounds that determine the grid sizes.
#pragma once

#include "kernels/attention.h"
#include "kernels/beam_sampling.h"
#include "kernels/beam_step.h"
#include "kernels/candidate_logits.h"
#include "kernels/device.h"
#include "kernels/embedding.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/log_prob.h"
#include "kernels/logit_rules.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/sampling.h"
#include "kernels/selection.h"
#include "kernels/stream.h"

namespace quintet::cuda {

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int ordinal);

#include "kernels/backend_ops-inl.h"

}  // namespace quintet::cuda
