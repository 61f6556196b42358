// The maximum number of logits rows in one sampling batch.
#pragma once

#include <cstdint>

#include "kernels/runtime/stream.h"

namespace quintet {

// Maximum number of logits rows in one sampling batch. At least 32, the maximum number of beams of
// one request.
inline int64_t LogitsChunkRows(const Stream& stream) {
  return stream.backend() == Backend::kCpu ? 64 : 256;
}

}  // namespace quintet
