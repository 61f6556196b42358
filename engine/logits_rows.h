// The maximum number of logits rows in one sampling batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/runtime/stream.h"
#include "kernels/sampling/selection.h"
#include "models/model.h"

namespace quintet {

// Returns the maximum number of logits rows in one sampling batch: 64 on a CPU. On a GPU it is
// max_step_sequences, but at least 256, so that all rows of a step fit into one batch: with several
// batches the host waits for each of them, and the next step cannot be enqueued ahead. For a large
// vocabulary it is reduced until the logits fit 2 GiB, but not below 256. Every request fits into a
// batch, because it has at most 32 rows (beams).
inline int64_t LogitsChunkRows(int64_t vocab, const ModelLimits& limits, const Stream& stream) {
  constexpr int64_t kLogitsBytes = int64_t{2} << 30, kLeastRows = 256;
  if (stream.backend() == Backend::kCpu) return 64;
  return std::clamp(kLogitsBytes / (LogitsStride(vocab) * 4), kLeastRows,
                    std::max(kLeastRows, limits.max_step_sequences));
}

}  // namespace quintet
