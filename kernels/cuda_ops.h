// The ops on a GPU. Arguments have been checked by the public functions. Tensors are device memory,
// spans and index Tensors mirrored memory (kernels/stream.h).
//
// A launcher queues kernels and nothing else: it never copies, allocates or waits, so that a step
// can be captured as a graph. Lengths that change from step to step are read by the kernels from
// the twins; their values on the host are upper bounds, which size the launches.
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
