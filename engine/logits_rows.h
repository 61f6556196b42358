// How many rows of logits the decoder searches together.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace quintet {

// At least the widest beam, 32.
inline int64_t LogitsChunkRows(const Stream& stream) {
  return stream.backend() == Backend::kCpu ? 64 : 256;
}

}  // namespace quintet
