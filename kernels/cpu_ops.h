// CPU implementations of the ops declared in the headers below. The public functions have already
// checked the arguments. Highway compiles the vector kernels once per instruction set
// (foreach_target) and selects one at run time.
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
#include "kernels/runtime/thread_pool.h"
#include "kernels/sampling/beam_sampling.h"
#include "kernels/sampling/beam_step.h"
#include "kernels/sampling/candidate_logits.h"
#include "kernels/sampling/log_prob.h"
#include "kernels/sampling/logits_processors.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/selection.h"

namespace quintet::cpu {

using Executor = ThreadPool;

#include "kernels/backend_ops-inl.h"

}  // namespace quintet::cpu
