// CPU implementations of the ops declared in the headers below. The public functions have already
// checked the arguments. Highway compiles the vector kernels once per instruction set
// (foreach_target) and selects one at run time.
#pragma once

#include "kernels/attention.h"
#include "kernels/beam_sampling.h"
#include "kernels/beam_step.h"
#include "kernels/candidate_logits.h"
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

namespace quintet::cpu {

#include "kernels/backend_ops-inl.h"

}  // namespace quintet::cpu
