// Row count of one sampling batch.
#pragma once

#include <cstdint>

#include "kernels/runtime/stream.h"

namespace quintet {

// Maximum rows of logits in one sampling batch. At least 32, the widest beam.
inline int64_t LogitsChunkRows(const Stream& stream) {
  return stream.backend() == Backend::kCpu ? 64 : 256;
}

}  // namespace quintet
